"""A model directory's tokenizer: what comes before a prompt, what ends a text, and errors that say which file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.text.tokenizers_for_tests import byte_level, sentencepiece_like, write

from sparkwright.core.contracts import Site
from sparkwright.core.errors import ModelError, RequestError
from sparkwright.core.testing.ground import BOS, Ground, V, table
from sparkwright.core.testing.toys import markov_target, table_drafter
from sparkwright.core.text import TokenizerText, eos_ids

HELLO = [{"role": "user", "content": "hello"}]


def test_a_raw_prompt_gets_the_bos_and_not_the_eos_of_its_post_processor(tmp_path: Path) -> None:
    text = TokenizerText.load(write(tmp_path, sentencepiece_like(), {"bos_token": "<s>", "eos_token": "</s>"}))
    ids = text.encode("hello")
    assert ids[0] == 1
    assert ids.count(1) == 1
    assert 2 not in ids
    assert text.decode(ids) == "hello"


def test_words_inside_a_text_have_no_bos(tmp_path: Path) -> None:
    text = TokenizerText.load(write(tmp_path, sentencepiece_like(), {"bos_token": "<s>", "eos_token": "</s>"}))
    assert text.encode("hello") == [1, *text.encode_part("hello")]


def test_the_kits_toy_has_a_bos_so_that_words_looked_for_with_encode_are_not_found() -> None:
    (target, *_) = Ground(markov_target(table(V), name="any")).toys()
    text = target.build(None, Site()).sparkwright_target_text()  # type: ignore[attr-defined]
    assert text.encode("cd") == [BOS, 2, 3] and text.encode_part("cd") == [2, 3] and text.decode([BOS, 2]) == "c"


def test_a_prompt_that_starts_with_bos_gets_no_second_one(tmp_path: Path) -> None:
    text = TokenizerText.load(write(tmp_path, sentencepiece_like(), {"bos_token": "<s>"}))
    assert text.encode("<s>hello").count(1) == 1


@pytest.mark.parametrize(("wanted", "expected"), [(True, [256 + 6]), (False, [])])
def test_add_bos_token_overrides_the_post_processor(tmp_path: Path, wanted: bool, expected: list[int]) -> None:
    config = {"bos_token": {"content": "<s>"}, "add_bos_token": wanted}
    assert list(TokenizerText.load(write(tmp_path / "a", byte_level(), config)).prefix) == expected
    other = TokenizerText.load(write(tmp_path / "b", sentencepiece_like(), config))
    assert list(other.prefix) == ([1] if wanted else [])


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=10)
    text = TokenizerText.load(write(tmp_path, tokenizer))
    assert len(text.encode("zzzzz")) == 5


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config": {"eos_token_id": 7}}, (7,)),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [8, 9]}}, (8, 9)),
        ({"config": {"text_config": {"eos_token_id": 5}}}, (5,)),
        ({"config": {"eos_token_id": 7}, "tokenizer_config": {"eos_token": "</s>"}}, (7, 263)),
        ({"config": {}}, ()),
        ({"config": {"eos_token_id": None}, "generation_config": {"eos_token_id": 3}}, (3,)),
        ({"tokenizer_config": {"eos_token": "<x>", "added_tokens_decoder": {"4": {"content": "<x>"}}}}, (4,)),
    ],
)
def test_the_ids_that_end_a_text(tmp_path: Path, files: dict[str, Any], expected: tuple[int, ...]) -> None:
    write(tmp_path, byte_level(), **{k: v for k, v in files.items() if k != "tokenizer_config"})
    if "tokenizer_config" in files:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(files["tokenizer_config"]))
    assert eos_ids(tmp_path) == expected


def test_an_eos_that_is_no_token_id_is_an_error_with_its_value(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), config={}, generation_config={"eos_token_id": "end"})
    with pytest.raises(ModelError, match="eos_token_id is 'end'"):
        TokenizerText.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": {}}', b"\xff\xfe"])
def test_a_damaged_tokenizer_is_one_model_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        TokenizerText.load(tmp_path)


def test_a_missing_tokenizer_or_directory_is_one_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: missing"):
        TokenizerText.load(tmp_path)
    with pytest.raises(ModelError, match="no such model directory"):
        TokenizerText.load(tmp_path / "nowhere")


def test_a_prompt_with_lone_surrogates_is_a_request_error(tmp_path: Path) -> None:
    text = TokenizerText.load(write(tmp_path, byte_level()))
    with pytest.raises(RequestError, match="surrogates"):
        text.encode("a\udc80")


def test_a_prompt_with_a_token_the_model_does_not_have_is_a_request_error(tmp_path: Path) -> None:
    text = TokenizerText.load(write(tmp_path, byte_level()), limit=262)
    assert text.encode("he") != []
    with pytest.raises(RequestError, match=r"'</s>' \(id 263\) is beyond this model's vocabulary of 262"):
        text.encode("he</s>")


def test_ids_beyond_the_vocabulary_decode_to_nothing(tmp_path: Path) -> None:
    text = TokenizerText.load(write(tmp_path, byte_level()))
    assert text.decode([*text.encode("hi"), text.vocab_size + 5]) == "hi"


def test_a_conversation_is_what_the_template_writes_and_nothing_more(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}"
    config = {"bos_token": "<s>", "chat_template": template}
    text = TokenizerText.load(write(tmp_path, sentencepiece_like(), config))
    assert text.has_chat
    ids = text.encode_chat(HELLO)
    assert ids.count(1) == 1
    assert text.decode(ids).endswith("[user]hello")


def test_the_template_file_wins_over_the_config(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), {"chat_template": "config"})
    (tmp_path / "chat_template.jinja").write_text("file")
    text = TokenizerText.load(tmp_path)
    assert text.decode(text.encode_chat(HELLO)) == "file"


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    text = TokenizerText.load(write(tmp_path, byte_level(), {"chat_template": several}))
    assert text.decode(text.encode_chat(HELLO)) == "plain"


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    text = TokenizerText.load(write(tmp_path, byte_level()))
    assert not text.has_chat
    with pytest.raises(RequestError, match="no chat template"):
        text.encode_chat(HELLO)


def test_a_plugin_is_lent_both_ways_to_encode() -> None:
    found = []

    def build(_: object, site: Site) -> object:
        assert site.text is not None
        found.append((site.text.encode("cd"), site.text.encode_part("cd")))
        return drafter.build(None, site)

    drafter = table_drafter(table(V), name="looks")
    ground = Ground(attrs.evolve(drafter, build=build))
    with ground.engine():
        assert found == [([BOS, 2, 3], [2, 3])]
