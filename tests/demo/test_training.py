"""The scripts of training/ that need no GPU: the same text twice, refusals in one sentence, the page's commands.

Training itself is not run here (PyTorch is no dependency); docs/demo-model.md has a rehearsal of all of it.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "training"
PAGE = (ROOT / "docs" / "demo-model.md").read_text(encoding="utf-8")


def run(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(TRAINING / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def refusal(script: str, *words: object) -> str:
    """What a script says that leaves with status 1: one line, no traceback."""
    found = run(script, *words)
    said = found.stderr.strip()
    assert found.returncode == 1 and "Traceback" not in said, (found.returncode, said)
    assert said.startswith(f"{script}: ") and len(said.splitlines()) == 1, said
    return said


def made(script: str, *words: object) -> str:
    found = run(script, *words)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One wheel of 160 modules and 160 pages of words made up, enough for 4,096 tokens and for files held out."""
    folder = tmp_path_factory.mktemp("sources")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(4000)]
    (folder / "wheels").mkdir()
    (folder / "debs").mkdir()
    with zipfile.ZipFile(folder / "wheels" / "made_up-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("made_up-1.0.dist-info/METADATA", "Name: made_up\nVersion: 1.0\nLicense-Expression: MIT\n\n")
        for i in range(160):
            lines = [f'{w} = "{" ".join(rng.choices(words, k=7))}"' for w in rng.choices(words, k=40)]
            wheel.writestr(f"made_up/module_{i}.py", "\n".join(f"the_{line}" for line in lines))
            lines = [" ".join(rng.choices(words, k=10)) + "." for _ in range(40)]
            wheel.writestr(f"made_up/page_{i}.rst", "\n".join(lines))
    return folder


def prepared(sources: Path, out: Path) -> dict[str, str]:
    """Corpus, tokenizer, tokens, prompts -> hashes of the files."""
    made("corpus.py", sources / "wheels", sources / "debs", out, "--any")
    made("tokenizer.py", out / "train.txt.xz", out)
    for name in ("train", "heldout"):
        made("data.py", out / f"{name}.txt.xz", out / "tokenizer.json", out / f"{name}.npy.xz")
    made("prompts.py", out / "heldout.txt.xz", out / "tokenizer.json", out, "--each", 2)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


def test_corpus_tokenizer_tokens_and_prompts_are_the_same_twice(sources: Path, tmp_path: Path) -> None:
    first, second = (prepared(sources, tmp_path / name) for name in ("one", "two"))
    assert first == second and len(first) == 9
    assert json.loads((tmp_path / "one" / "prompts.json").read_text())["kinds"] == ["code"] * 2 + ["prose"] * 2


def test_sources_that_are_not_the_listed_ones_are_refused_unless_asked_for(sources: Path, tmp_path: Path) -> None:
    assert "made_up-1.0-py3-none-any.whl is not one of sources.sha256" in refusal(
        "corpus.py", sources / "wheels", sources / "debs", tmp_path / "out"
    )
    (tmp_path / "wheels").mkdir()
    said = refusal("corpus.py", tmp_path / "wheels", sources / "debs", tmp_path / "out")
    assert "104 of 104 sources are not there" in said and "run fetch.sh" in said
    (tmp_path / "wheels" / "attrs-26.1.0-py3-none-any.whl").write_bytes(b"another")
    assert "another hash" in refusal("corpus.py", tmp_path / "wheels", sources / "debs", tmp_path / "out")
    assert "is no wheel" in refusal("corpus.py", tmp_path / "wheels", sources / "debs", tmp_path / "out", "--any")
    assert not (tmp_path / "out" / "train.txt.xz").exists()


NOTHING = {
    "against_sparkwright.py": ("model", "heldout.npy.xz"), "against_transformers.py": ("model", "heldout.npy.xz"),
    "assemble.py": ("target", "drafter", "work", "out"), "corpus.py": ("wheels", "debs", "out"),
    "curves.py": ("model", "acceptance.json"), "data.py": ("train.txt.xz", "tokenizer.json", "out.npy.xz"),
    "evaluate.py": ("rounds.npz", "prompts.json", "out.json"), "heldout.py": ("work", "target", "out.json"),
    "ngram.py": ("work", "texts.json"), "overlap.py": ("work", "target", "out.json"), "own.py": ("work", "target", "t"),
    "prompts.py": ("heldout.txt.xz", "tokenizer.json", "out"), "texts.py": ("wheels", "debs", "out.json"),
    "tokenizer.py": ("train.txt.xz", "out"), "train_drafter.py": ("work", "target", "texts", "out", "--steps=1"),
    "train_target.py": ("work", "out", "--steps=1"),
}  # fmt: skip


@pytest.mark.parametrize("script", sorted(NOTHING))
def test_what_is_missing_is_said_in_a_sentence_that_says_who_makes_it(script: str, tmp_path: Path) -> None:
    words = [word if word.startswith("--") else tmp_path / "none" / word for word in NOTHING[script]]
    said = refusal(script, *words)
    assert re.search(r"(is not there|is no folder); \w+\.(py|sh)\b.* makes it|no package torch", said), said
    assert "Training it again" in said and "## Training it again" in PAGE


def test_a_script_without_arguments_shows_its_usage() -> None:
    found = run("corpus.py")
    assert found.returncode == 2 and found.stderr.startswith("usage: corpus.py") and "Traceback" not in found.stderr


def checkpoint(path: Path, name: str, missing: int = 0) -> Path:
    head = json.dumps({name: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes((struct.pack("<Q", len(head)) + head + bytes(16))[: len(head) + 24 - missing])
    return path


def test_parts_that_are_swapped_or_cut_short_are_not_assembled(tmp_path: Path) -> None:
    target, drafter = checkpoint(tmp_path / "t", "layers.0.w"), checkpoint(tmp_path / "d", "mtp.0.w")
    cut = checkpoint(tmp_path / "cut", "mtp.0.w", missing=4)
    text = checkpoint(tmp_path / "text", "mtp.0.w")
    text.write_text("no checkpoint, but a text that is long enough")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    out = tmp_path / "model"
    assert "holds no tensor layers.0.*" in refusal("assemble.py", drafter, target, tmp_path, out)
    assert "was not written to the end" in refusal("assemble.py", target, cut, tmp_path, out)
    assert "is no safetensors file" in refusal("assemble.py", target, text, tmp_path, out)
    assert not out.exists()
    made("assemble.py", target, drafter, tmp_path, out)
    assert json.loads((out / "config.json").read_text())["model_type"] == "deepseek_v4"


def test_a_file_that_ends_too_early_is_said_to(sources: Path, tmp_path: Path) -> None:
    made("corpus.py", sources / "wheels", sources / "debs", tmp_path, "--any")
    text = tmp_path / "train.txt.xz"
    text.write_bytes(text.read_bytes()[:-100])
    assert "run corpus.py again" in refusal("tokenizer.py", text, tmp_path / "out")


def test_the_list_of_sources_is_what_is_fetched() -> None:
    names = [line.split()[1] for line in (TRAINING / "sources.sha256").read_text().splitlines()]
    wheels = {"==".join(n.removeprefix("wheels/").split("-")[:2]) for n in names if n.startswith("wheels/")}
    debs = {"=".join(n[5:].split("_")[:2]).replace("%3a", ":") for n in names if n.startswith("debs/")}
    script = (TRAINING / "fetch.sh").read_text()
    assert set(re.findall(r"[\w.]+==[\w.]+", script)) == wheels and len(wheels) == 85
    assert set(re.findall(r"(?<![\w.=])[a-z][\w.-]+-(?:doc|testsuite)=[^\s\"]+", script)) == debs and len(debs) == 19


def test_the_tokenizer_that_ships_is_the_one_that_is_made() -> None:
    lines = [line.split() for line in (TRAINING / "made.sha256").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    shipped = (ROOT / "plugins" / "demo" / "model" / "tokenizer.json").read_bytes()
    assert hashlib.sha256(shipped).hexdigest() == listed["tokenizer.json"] and len(listed) == 6


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Script and options of each command of training/ in a block."""
    lines = block.replace("\\\n", " ").splitlines()
    found = [re.search(r"(?:python|sh) (\w+\.(?:py|sh))(.*)", line) for line in lines]
    return [(m[1], re.findall(r"--[a-z-]+", m[2])) for m in found if m]


def test_the_rehearsal_of_the_page_is_all_of_it_with_options_that_exist() -> None:
    whole, rehearsal = (commands(b) for b in re.findall(r"```sh\n(D=.*?)```", PAGE, re.DOTALL))
    assert [name for name, _ in whole] == [name for name, _ in rehearsal]
    assert {*NOTHING, "fetch.sh"} == {name for name, _ in whole}
    variables = re.findall(r'^S="(.*)"$', PAGE, re.MULTILINE)
    used = [*whole, *rehearsal, ("train_target.py", variables[0].split()), ("train_drafter.py", variables[1].split())]
    for script, options in used:
        known = (TRAINING / script).read_text(encoding="utf-8")
        if "asked(__doc__)" in known:  # the command line of reference.py
            known += (TRAINING / "reference.py").read_text(encoding="utf-8")
        unknown = [option for option in options if option.startswith("--") and f'"{option}"' not in known]
        assert not unknown, f"{script} has no {unknown}"
