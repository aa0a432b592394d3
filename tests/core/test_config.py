"""Layers, precedence and origins; strict types; every problem in one go; the hash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from tests.core.engines import installed

from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import Provider, SchedulerFacts, option
from sparkwright.core.convert import convert
from sparkwright.core.errors import ConfigError, PluginError
from sparkwright.core.layers import parse


@attrs.frozen
class ToyOptions:
    number: int = option(1, "a whole number")
    share: float = option(0.5, "a share")
    maybe: float | None = option(None, "a number, or not")
    on: bool = option(False, "a switch")
    word: str = option("x", "a word")
    mode: Literal["slow", "fast"] = option("slow", "how")
    words: tuple[str, ...] = option((), "words")
    numbers: list[int] = option([], "numbers")  # noqa: RUF009
    pair: tuple[int, str] = option((1, "a"), "a pair")
    bias: dict[int, float] = option({}, "by token")  # noqa: RUF009
    named: dict[str, int] = option({}, "by name")  # noqa: RUF009
    positive: int = option(1, "positive", attrs.validators.gt(0))
    few: int = option(2, "a few", attrs.validators.in_(range(2, 9)))


@attrs.frozen
class Between:
    low: int = option(1, "from")
    high: int = option(3, "to")

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}\nand more")


@attrs.frozen
class Mute:
    n: int = option(1, "a number")

    @n.validator
    def _check(self, attribute: Any, value: int) -> None:
        if value != 1:
            raise ValueError


def toy(name: str, options: type, kind: Any = "scheduler") -> Provider:
    return Provider(
        kind=kind, name=name, summary="toy", options=options, build=lambda options, site: object(),
        describe=lambda options, site: SchedulerFacts(),
    )  # fmt: skip


CATALOGUE = installed().with_providers(
    toy("toy", ToyOptions),
    toy("between", Between),
    toy("mute", Mute),
    toy("kern", ToyOptions, "kernels"),
    toy("unfused", ToyOptions, "kernels"),
)


def load(
    source: Any = None, sets: tuple[str, ...] = (), environ: Mapping[str, str] | None = None, **how: Any
) -> Config:
    return load_config(source, sets=sets, environ=environ or {}, catalogue=CATALOGUE, **how)


def options(source: Any = None, *sets: str) -> ToyOptions:
    made: ToyOptions = load(source, sets).slots["scheduler"].options["toy"]
    return made


def problems(source: Any = None, *sets: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(source, sets, environ)
    return list(caught.value.problems)


def one(source: Any = None, *sets: str, environ: Mapping[str, str] | None = None) -> str:
    found = problems(source, *sets, environ=environ)
    assert len(found) == 1, found
    return found[0]


# ------------------------------------------------------------------------------------------------------------ layers


def test_later_layers_win_and_every_value_knows_its_origin(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("[generation]\nseed = 1\nmax_tokens = 1\n[engine]\nprefill_chunk = 1\n")
    (tmp_path / "run.toml").write_text('extends = "base.toml"\n[generation]\nseed = 2\nmax_tokens = 2\n')
    run = tmp_path / "run.toml"
    environ = {"SPARKWRIGHT_GENERATION__SEED": "3", "SPARKWRIGHT_GENERATION__IGNORE_EOS": "true"}
    flags = {"generation.seed": (5, "--seed")}

    def seed(config: Config) -> tuple[Any, str]:
        return config.generation.seed, config.origins["generation.seed"]

    assert seed(load()) == (0, "default")
    assert seed(load(tmp_path / "base.toml")) == (1, str(tmp_path / "base.toml"))
    assert seed(load(run)) == (2, str(run))
    assert seed(load(run, environ=environ)) == (3, "environment SPARKWRIGHT_GENERATION__SEED")
    assert seed(load(run, ("generation.seed=4",), environ)) == (4, "--set generation.seed=4")
    assert seed(load(run, ("generation.seed=4",), environ, flags=flags)) == (5, "--seed")
    everything = load(run, environ=environ)
    assert (everything.engine.prefill_chunk, everything.generation.max_tokens) == (1, 2)
    assert everything.origins["engine.prefill_chunk"] == str(tmp_path / "base.toml")
    assert everything.generation.ignore_eos is True
    assert seed(load(str(run))) == (2, str(run))


def test_extends_goes_through_chains_lists_and_folders_in_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.toml").write_text("[generation]\nseed = 1\nmax_tokens = 1\n[engine]\nprefill_chunk = 1")
    (tmp_path / "sub/b.toml").write_text('extends = "../a.toml"\n[generation]\nseed = 2\nmax_tokens = 2')
    (tmp_path / "sub/c.toml").write_text("[generation]\nseed = 3")
    (tmp_path / "d.toml").write_text('extends = ["sub/b.toml", "sub/c.toml"]')
    config = load(tmp_path / "d.toml")
    assert (config.generation.seed, config.generation.max_tokens, config.engine.prefill_chunk) == (3, 2, 1)
    (tmp_path / "diamond.toml").write_text('extends = ["sub/b.toml", "a.toml"]')
    assert load(tmp_path / "diamond.toml").generation.seed == 1


def test_extends_that_cannot_be_followed(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"')
    (tmp_path / "b.toml").write_text('extends = "a.toml"')
    (tmp_path / "self.toml").write_text('extends = "self.toml"')
    (tmp_path / "lost.toml").write_text('extends = "nowhere.toml"')
    (tmp_path / "odd.toml").write_text("extends = 3")
    (tmp_path / "broken.toml").write_text("[generation\n")
    (tmp_path / "latin.toml").write_bytes(b"[generation]\nstop = ['\xe9']")
    assert "in a circle" in one(tmp_path / "a.toml") and "in a circle" in one(tmp_path / "self.toml")
    assert "nowhere.toml (extended by" in one(tmp_path / "lost.toml")
    assert "extends is 3" in one(tmp_path / "odd.toml")
    assert "not valid TOML" in one(tmp_path / "broken.toml") and "not valid TOML" in one(tmp_path / "latin.toml")
    assert "cannot be read" in one(tmp_path / "none.toml") and "cannot be read" in one(tmp_path)


def test_environment_names() -> None:
    config = load(
        environ={
            "SPARKWRIGHT_SCHEDULER__TOY__NUMBER": "7",
            "SPARKWRIGHT_SCHEDULER__USE": "toy",
            "SPARKWRIGHT_GENERATION__MAX_TOKENS": "9",
            "SPARKWRIGHT_DEBUG": "1",  # a switch, not configuration
            "OTHER__THING": "1",
        }
    )
    assert config.slots["scheduler"].options["toy"].number == 7 and config.generation.max_tokens == 9
    assert config.slots["scheduler"].asked_by == "environment SPARKWRIGHT_SCHEDULER__USE"
    text = one(environ={"SPARKWRIGHT_GENERATION__SEDE": "1"})
    assert "did you mean 'seed'" in text and "environment SPARKWRIGHT_GENERATION__SEDE" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("3.0", 3.0), ("true", True), ('"3"', "3"), ("lookup", "lookup"), ("[1, 2]", [1, 2]), ("", ""),
        ("~/a b", "~/a b"), ("True", "True"), ("a = b", "a = b"), ("1\nx = 2", "1\nx = 2"), ("{a = 1}", {"a": 1}),
    ],
)  # fmt: skip
def test_set_takes_toml_and_else_text(text: str, value: Any) -> None:
    assert parse(text) == value and type(parse(text)) is type(value)


def test_set_without_a_key_or_value_is_refused() -> None:
    for bad in ("generation.seed", "=3", " =3"):
        assert "expected KEY=VALUE" in one(None, bad)
    assert options(None, "scheduler.toy.word=a=b").word == "a=b"


# ------------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, "1"), (int, 1.0), (int, True), (int, None), (float, "1"), (float, True), (bool, 1), (bool, "true"),
        (str, 1), (tuple[str, ...], "ab"), (tuple[str, ...], ["a", 1]), (tuple[int, ...], [True]),
        (list[str], "ab"), (list[int], [1.5]), (tuple[int, str], [1]), (tuple[int, str], [1, 2]),
        (dict[str, float], {"a": "1"}), (dict[str, float], 3), (Literal["a", "b"], "c"), (int | None, "1"),
        (int | None, True), (float | None, "x"), (float | None, True),
    ],
)  # fmt: skip
def test_nothing_is_converted_silently(hint: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="expected "):
        convert(value, hint)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 1, 1.0), (tuple[str, ...], ["a"], ("a",)), (list[int], (1, 2), [1, 2]), (int | None, None, None),
        (float | None, 1, 1.0), (tuple[int, str], [1, "a"], (1, "a")), (dict[str, float], {"a": 1}, {"a": 1.0}),
        (tuple[tuple[int, ...], ...], [[1], [2, 3]], ((1,), (2, 3))), (Literal["a"], "a", "a"), (float, 0.5, 0.5),
    ],
)  # fmt: skip
def test_only_whole_numbers_to_numbers_and_lists_to_tuples(hint: Any, value: Any, expected: Any) -> None:
    made = convert(value, hint)
    assert made == expected and type(made) is type(expected)
    if isinstance(expected, dict):
        assert all(type(made[k]) is type(expected[k]) for k in expected)


def test_options_that_are_tables() -> None:
    chosen = options(None, "scheduler.toy.bias={5 = 1, 7 = -0.5}", "scheduler.toy.named.a=1", "scheduler.toy.bias.9=2")
    assert chosen.bias == {5: 1.0, 7: -0.5, 9: 2.0} and chosen.named == {"a": 1}
    assert options({"scheduler": {"toy": {"bias": {"-3": 1.0}}}}).bias == {-3: 1.0}
    assert "scheduler.toy.bias is {'x': 1}" in one(None, "scheduler.toy.bias.x=1")
    assert "expected a table of a number each" in one(None, "scheduler.toy.bias=3")
    assert load(None, ("sampler.chain.logit_bias.5=1.5",)).slots["sampler"].options["chain"].logit_bias == {5: 1.5}


def test_a_value_and_a_table_of_one_name_are_told_apart() -> None:
    assert "'scheduler.toy': 'scheduler.toy' is a table" in one(None, "scheduler.toy=3")
    assert "'scheduler.use' is a value" in one(None, "scheduler.use.x=3")
    assert "'target.model' is a value" in one(None, "target.model.x=3")
    assert "'kernels.ops' is a table" in one(None, "kernels.ops=3")
    assert "'scheduler' is a table, not a value" in one(None, "scheduler=3")
    assert "'observers.use' is a value" in one(None, "observers.use.x=3")
    both = one({"scheduler": {"toy": {"word": "x"}}}, "scheduler.toy.word.y=1")
    assert "is a value (the given dict) and a table (--set" in both
    assert "unknown key 'engine.costs.x'" in one(None, "engine.costs.x=1")


# ----------------------------------------------------------------------------------------------------------- problems


def test_every_problem_comes_in_one_go_with_key_origin_expectation_and_hint() -> None:
    found = problems(
        {
            "generation": {"sede": 1, "max_tokens": 0, "stop": "x"},
            "drafte": {"use": "lookup"},
            "top": 1,
            "scheduler": {"use": "fixd", "toy": {"number": "1", "mode": "fats", "nothing": 2}},
            "sampler": {"temperature": 0.5},
            "verifier": {"use": 3},
            "kernels": {"ops": {"some_op": "unfusd"}},
        },
        "engine.prefill_chunk=x",
    )
    text = "\n".join(found)
    for expected in (
        "unknown key 'generation.sede'; did you mean 'seed'? (the given dict)",
        "generation.max_tokens is 0",
        "generation.stop is 'x': expected a list of text each",
        "unknown table 'drafte'; did you mean 'drafter'?",
        "unknown key 'top'",
        "no scheduler plugin is named 'fixd' (asked by scheduler.use, the given dict); did you mean 'fixed'?",
        "scheduler.toy.number is '1': expected a whole number [a whole number]",
        "scheduler.toy.mode is 'fats': expected one of 'slow', 'fast'; did you mean 'fast'?",
        "unknown key 'scheduler.toy.nothing'",
        "unknown key 'sampler.temperature'; options of the plugin go under sampler.chain.temperature",
        "verifier.use is 3, expected text",
        "kernels.ops.some_op is 'unfusd', expected one of",
        "did you mean 'unfused'?",
        "engine.prefill_chunk is 'x': expected a whole number [prompt tokens",
    ):
        assert expected in text, expected
    assert len(found) == 13


def test_options_of_a_plugin_that_is_not_installed() -> None:
    settings = {"scheduler": {"use": "fixed", "absent": {"depth": 3}}}
    (warning,) = load(settings).warnings
    assert warning == (
        "'scheduler.absent.depth' is for the scheduler plugin 'absent', which is not installed, and changes nothing "
        "(the given dict)"
    )
    settings["scheduler"]["use"] = "absent"
    assert "no scheduler plugin is named 'absent'" in one(settings)
    (warning,) = load({"observers": {"absent": {"path": "x"}}}).warnings
    assert "the observer plugin 'absent'" in warning
    (warning,) = load({"kernels": {"absent": {"path": "x"}}}).warnings
    assert "the kernels plugin 'absent'" in warning


def test_options_that_are_checked_against_each_other_are_set_together() -> None:
    both = load(None, ("scheduler.between.low=5", "scheduler.between.high=9"))
    assert both.slots["scheduler"].options["between"] == Between(5, 9)
    text = one(None, "scheduler.between.low=5")
    assert text == "[scheduler.between] does not fit together: low 5 is above high 3 (--set scheduler.between.low=5)"


def test_a_validator_without_a_message_is_still_reported() -> None:
    assert "scheduler.mute.n is 2: ValueError" in one(None, "scheduler.mute.n=2")


def test_a_validator_of_attrs_is_reported_without_what_attrs_adds() -> None:
    text = one(None, "scheduler.toy.few=12")
    assert text == (
        "scheduler.toy.few is 12: 'few' must be in range(2, 9) (got 12) [a few] (--set scheduler.toy.few=12)"
    )


def test_unknown_observers_and_backends_are_errors() -> None:
    assert "no observer plugin is named 'trase'" in one({"observers": {"use": ["trase"]}})
    assert "no kernels plugin is named 'fuzed'" in one({"kernels": {"use": ["fuzed"]}})


def test_disable_reaches_discovery_and_its_mistakes_too() -> None:
    config = load_config({"plugins": {"disable": ["threshold"]}}, environ={})
    assert config.catalogue.find("scheduler", "threshold") is None
    with pytest.raises(ConfigError, match=r"plugins\.disable names the plugin 'thresh'"):
        load_config({"plugins": {"disable": ["thresh"]}}, environ={})
    with pytest.raises((ConfigError, PluginError), match="expected a list"):
        load_config({"plugins": {"disable": "threshold"}}, environ={})


# ------------------------------------------------------------------------------------------------------- paths, hash


def test_model_paths_start_from_the_folder_of_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there/a.toml").write_text('[target]\nmodel = "m"\n[drafter]\nmodel = "/d"')
    (tmp_path / "b.toml").write_text('extends = "there/a.toml"')
    config = load(tmp_path / "b.toml")
    assert config.slots["target"].model == tmp_path / "there/m"
    assert config.slots["drafter"].model == Path("/d")
    assert load(None, ("target.model=m",)).slots["target"].model == tmp_path / "here/m"
    assert load(None, ("target.model=~/m",)).slots["target"].model == tmp_path / "m"
    assert load(None, environ={"SPARKWRIGHT_TARGET__MODEL": "m"}).slots["target"].model == tmp_path / "here/m"
    assert load().slots["target"].model is None


def test_the_hash_is_of_what_is_said_whatever_the_layer(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[generation]\nseed = 7\n[scheduler]\nuse = 'toy'\n[scheduler.toy]\nshare = 1")
    by_file = load(tmp_path / "a.toml").sha256
    sets = ("scheduler.use=toy", "generation.seed=7", "scheduler.toy.share=1.0")
    assert by_file == load(None, sets).sha256
    assert by_file == load({"scheduler": {"use": "toy", "toy": {"share": 1}}}, ("generation.seed=7",)).sha256
    assert by_file == load(tmp_path / "a.toml", ("engine.prefill_chunk=512",)).sha256  # a default, said aloud
    assert len(by_file) == 64


def test_the_hash_changes_with_every_value_in_force_and_no_other() -> None:
    base = ("scheduler.use=toy", "kernels.use=['unfused']")
    seen = {load(None, base).sha256}
    for more in (
        "generation.seed=8", "scheduler.toy.maybe=0.1", "scheduler.toy.bias.3=1", "target.model=m",
        "scheduler.use=fixed", "scheduler.toy.words=['a']", "kernels.ops.x=kern", "engine.row_exact=true",
        "kernels.unfused.number=2",
    ):  # fmt: skip
        sha = load(None, (*base, more)).sha256
        assert sha not in seen, more
        seen.add(sha)
    assert load(None, (*base, "scheduler.between.high=9")).sha256 in seen  # a plugin that nobody uses
    assert load(None, (*base, "kernels.kern.number=2")).sha256 in seen
    override = (*base, "kernels.ops.x=kern")
    assert load(None, override).sha256 != load(None, (*override, "kernels.kern.number=2")).sha256


def test_resolved_values_are_plain_and_cover_what_is_in_use() -> None:
    import json

    config = load(None, ("scheduler.use=toy", "scheduler.toy.bias.3=1"))
    values = config.to_dict()
    assert values["scheduler.toy.bias"] == {"3": 1.0} and values["scheduler.toy.pair"] == [1, "a"]
    assert set(values) == set(config.origins)
    assert not any(key.startswith("scheduler.between") for key in values)
    json.dumps(values)


def test_text_that_looks_like_a_number_is_text_where_text_is_wanted() -> None:
    environ = {"SPARKWRIGHT_DRAFTER__MODEL": "true"}
    config = load_config(sets=["target.model=2024", "engine.costs=none"], environ=environ)
    assert config.values["target.model"].value == "2024"
    assert config.values["drafter.model"].value == "true"
    assert load_config(sets=['target.model="a b"'], environ={}).values["target.model"].value == "a b"
