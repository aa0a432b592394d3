"""What a machine and a checkpoint are: hashes of headers, and answers of a Mac's programs (recorded shapes)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.evidence import fakes

from sparkwright.core.evidence import facts

SAID = {
    "sysctl -n machdep.cpu.brand_string": "Apple M3 Ultra\n",
    "sysctl -n hw.model": "Mac15,14\n",
    "sysctl -n hw.memsize": "549755813888\n",
    "sysctl -n hw.perflevel0.physicalcpu": "24\n",
    "sysctl -n hw.perflevel1.physicalcpu": "8\n",
    "sysctl -n iogpu.wired_limit_mb": "0\n",
    "system_profiler -json SPDisplaysDataType": json.dumps(
        {"SPDisplaysDataType": [{"sppci_model": "Apple M3 Ultra", "sppci_cores": "80", "_name": "kHW_M3",
                                 "spdisplays_ndrvs": [{"_spdisplays_display-serial-number": "SECRET123"}]}]}
    ),
    "pmset -g batt": "Now drawing from 'AC Power'\n",
    "pmset -g": "System-wide power settings:\nCurrently in use:\n lowpowermode         1\n sleep  1\n",
}  # fmt: skip


def test_a_mac_is_told_in_the_fields_that_are_named_and_no_others() -> None:
    found = facts._mac(lambda *command: SAID[" ".join(command)])
    assert found == {
        "macos": found["macos"], "chip": "Apple M3 Ultra", "mac_model": "Mac15,14", "memory_bytes": 512 << 30,
        "performance_cores": 24, "efficiency_cores": 8, "wired_limit_megabytes": 0, "gpu_cores": 80, "power": "mains",
        "low_power_mode": True,
    }  # fmt: skip
    assert "SECRET" not in json.dumps(found)


@pytest.mark.parametrize("answer", ["", "garbage", "{", "[]", '{"SPDisplaysDataType": [3]}'])
def test_programs_that_answer_something_else_only_cost_their_fact(answer: str) -> None:
    found = facts._mac(lambda *command: answer)
    assert "gpu_cores" not in found and "power" not in found


def test_a_program_that_is_not_there_says_nothing() -> None:
    assert facts._output("no-such-program-anywhere") == "" and facts._output("false") == ""


def test_this_machine_has_a_device_and_memory() -> None:
    found = facts.machine()
    assert found["device"] in ("cpu", "cuda", "metal") and found["memory_bytes"] > 1 << 28 and found["device_info"]
    assert json.loads(json.dumps(found)) == found


def test_a_checkpoint_is_hashed_by_header_index_and_config(tmp_path: Path) -> None:
    folder = fakes.model(tmp_path / "m")
    (folder / facts.INDEX).write_text("{}")
    found = facts.checkpoint(folder)
    by_name = {one["file"]: one for one in found["files"]}
    weights = (folder / "model.safetensors").read_bytes()
    assert by_name["model.safetensors"]["header_sha256"] == hashlib.sha256(weights).hexdigest()
    assert by_name["config.json"]["sha256"] == hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    assert facts.INDEX in by_name and found["weight_files"] == 1

    (folder / "model.safetensors").write_bytes(weights + b"\x00" * 100)  # another payload of another size
    assert facts.checkpoint(folder)["sha256"] != found["sha256"]
    (folder / "model.safetensors").write_bytes(weights)
    assert facts.checkpoint(folder)["sha256"] == found["sha256"]
    (folder / "config.json").write_text('{"model_type": "other"}')
    assert facts.checkpoint(folder)["sha256"] != found["sha256"]


def test_what_cannot_be_read_is_listed_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fakes.model(tmp_path / "m")
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 20)
    (folder / "my-own.safetensors").write_bytes(b"\x01")
    (folder / "model-00002-of-00002.safetensors").symlink_to("nowhere")
    monkeypatch.setattr(facts, "LARGEST_SMALL", 3)
    unread = {one["file"]: one["unread"] for one in facts.checkpoint(folder)["files"] if "unread" in one}
    assert unread["config.json"] == "larger than 3 bytes"
    assert unread["model-00001-of-00002.safetensors"] == unread["file 4"] == "no safetensors header"
    assert unread["model-00002-of-00002.safetensors"] == "No such file or directory"
