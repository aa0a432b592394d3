"""Bundled prompts, and every way in which a file of prompts can be bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.core.compare.prompts import SETS, load_prompts
from sparkwright.core.compare.records import CompareError


def test_every_bundled_set_has_at_least_eight_prompts_with_ids_of_their_own() -> None:
    everything = load_prompts("all")
    assert len({p.id for p in everything}) == len(everything)
    for name in SETS:
        prompts = load_prompts(name)
        assert len(prompts) >= 8
        assert {p.kind for p in prompts} == {name}
        assert all(p.chat is (name == "chat") for p in prompts)
    assert min(len(p.text) for p in load_prompts("long-context")) > 4 * max(len(p.text) for p in load_prompts("prose"))
    assert {p.kind for p in load_prompts("chat, code")} == {"code", "chat"}


def test_text_files_hold_one_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes("\ufefffirst prompt\r\n\r\n  second: ünï \n".encode())
    assert [(p.id, p.kind, p.text) for p in load_prompts(file)] == [
        ("mine-1", "mine", "first prompt"),
        ("mine-3", "mine", "second: ünï"),
    ]


def test_json_lines_hold_strings_and_objects(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '"plain"\n{"prompt": "as others call it"}\n{"id": "x", "kind": "chat", "text": "hi", "chat": true}\n'
    )
    prompts = load_prompts(file)
    assert [(p.id, p.kind, p.text, p.chat) for p in prompts] == [
        ("mine-1", "mine", "plain", None),
        ("mine-2", "mine", "as others call it", None),
        ("x", "chat", "hi", True),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts; expected one a line"),
        (b"\n  \n", "holds no prompts"),
        (b'"fine"\n{"text": "torn', r"line 2 is not JSON \(Unterminated string"),
        (b'"fine"\n\xff\xfe', "line 2: byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"[1, 2]\n", "line 1 is a JSON list; expected a string, or an object with 'text'"),
        (b"17\n", "line 1 is a JSON int"),
        (b'{"text": ""}\n', "line 1: 'text' is ''; expected a prompt that is not empty"),
        (b'{"text": 3}\n', "line 1: 'text' is 3"),
        (b'{"id": "x"}\n', "line 1: 'text' is None"),
        (b'{"txet": "a"}\n', "unknown key 'txet'; did you mean 'text'"),
        (b'{"text": "a", "chat": "yes"}\n', "'chat' is 'yes'; expected true or false"),
        (b'{"text": "a", "id": 4}\n', "'id' and 'kind' must be text"),
        (b'{"text": "a", "id": "x"}\n{"text": "b", "id": "x"}\n', "line 2: id 'x' is already used in line 1"),
        (b"[" * 100_000, "line 1 is n"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(CompareError, match=message) as caught:
        load_prompts(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_names_the_bundled_sets(tmp_path: Path) -> None:
    with pytest.raises(
        CompareError, match=r"does not exist; did you mean 'prose'\?; give a file, or a bundled set: code"
    ):
        load_prompts("prosa")
    with pytest.raises(CompareError, match="cannot be read: Is a directory"):
        load_prompts(tmp_path)
