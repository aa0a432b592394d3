"""`sparkwright plugin check`, and `checks_for` and `parametrize_with_checks` beneath it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from click.testing import CliRunner
from tests.kit.bad import clean, observers, schedulers

from sparkwright.core.cli import cli
from sparkwright.core.contracts import KINDS, Provider, option
from sparkwright.core.errors import ConfigError, PluginError
from sparkwright.core.testing import Check, CheckFailed, Skipped, checks_for, parametrize_with_checks
from sparkwright.core.testing.kit import entries_for

(TWO,) = clean.sparkwright_register_schedulers()
BAD = schedulers.TWINS[0].bad


def check(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["plugin", "check", *arguments])


def data(*arguments: str, code: int = 0) -> Any:
    done = check(*arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_an_installed_plugin_is_checked_by_name() -> None:
    seen = data("scheduler:fixed", "--fast")
    assert seen["passed"] and seen["counts"]["failed"] == 0
    assert {row["check"] for row in seen["checks"]} == {e.name for e in entries_for("scheduler") if not e.slow}
    assert all(row["plugin"] == "fixed" and row["proves"] for row in seen["checks"])


def test_a_name_of_two_kinds_is_asked_for_by_kind() -> None:
    with pytest.raises(PluginError, match="say which: sampler:greedy, verifier:greedy"):
        _raise(check("greedy"))
    assert data("verifier:greedy", "--only", "provider")["passed"]


@attrs.frozen
class Lists:
    """Every annotation that docs/reference/contracts.md names for an option."""

    words: tuple[str, ...] = option((), "any number of texts")
    pair: tuple[int, float] = option((1, 0.5), "two")
    many: list[int] = option([1], "a list")  # noqa: RUF009
    table: dict[str, int] = option({"a": 1}, "a table")  # noqa: RUF009
    maybe: tuple[str, ...] | None = option(None, "texts or nothing")
    mode: Literal["a", "b"] = option("a", "one of two")
    share: float = option(1.0, "a number")


@pytest.mark.parametrize(
    "given",
    [{}, {"words": ["ab", "c"], "pair": [2, 1], "many": [3, 4], "table": {"b": 2}, "maybe": ["x"], "share": 2}],
)
def test_options_of_every_documented_annotation_make_the_round_trip(given: dict[str, Any]) -> None:
    provider = attrs.evolve(TWO, options=Lists)
    (found,) = [c for c in checks_for(provider, options=given) if c.name == "options round trip"]
    assert found.outcome().message == "" and found.outcome().status == "passed"


def _raise(done: Any) -> None:
    raise done.exception


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("lokup", "did you mean 'lookup'"),
        ("drafters:lookup", "did you mean 'drafter'"),
        ("./nowhere.py", "does not exist"),
    ],
)
def test_what_is_not_there_is_said(what: str, says: str) -> None:
    done = check(what)
    assert isinstance(done.exception, PluginError) and says in str(done.exception)


def test_a_check_that_does_not_exist_is_said() -> None:
    done = check("fixed", "--only", "limit")
    assert isinstance(done.exception, ConfigError) and "did you mean 'limits'" in str(done.exception)


def write(folder: Path, name: str, plan: str) -> Path:
    source = (
        Path(clean.__file__).read_text(encoding="utf-8").replace("min(2, limit)", plan).replace('"two"', f'"{name}"')
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return folder / f"{name}.py"


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_file_is_checked_by_path_and_a_failure_is_the_exit_status(tmp_path: Path) -> None:
    good, bad = write(tmp_path, "swt_kit_good", "min(2, limit)"), write(tmp_path, "swt_kit_bad", "2")
    assert data(str(good), "--fast")["passed"]
    seen = data(str(bad), "--only", "limits", code=1)
    (row,) = seen["checks"]
    assert row["status"] == "failed" and "scheduler 'swt_kit_bad', check 'limits'" in row["message"]
    done = check(str(bad), "--only", "limits")
    assert done.exit_code == 1 and "1 failed" in done.stdout and "expected 0..0" in " ".join(done.stdout.split())


def test_a_package_folder_is_checked_by_its_entry_points(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write(root / "src", "swt_kit_project", "min(2, limit)")
    with pytest.raises(PluginError, match=r"neither a .py file nor a folder"):
        _raise(check(str(root)))
    (root / "pyproject.toml").write_text('[project]\nname = "x"\n')
    with pytest.raises(PluginError, match="declares no entry point"):
        _raise(check(str(root)))
    (root / "pyproject.toml").write_text('[project.entry-points."sparkwright.plugins"]\nmine = "swt_kit_project"\n')
    assert data(str(root), "--only", "same rounds, same plans")["passed"]


def test_a_misspelt_hook_fails_one_check_with_the_right_name_and_no_object(tmp_path: Path) -> None:
    path = write(tmp_path, "swt_kit_lern", "min(2, limit)")
    path.write_text(path.read_text(encoding="utf-8").replace("scheduler_learn", "scheduler_lern"), encoding="utf-8")
    rows = data(str(path), "--fast", code=1)["checks"]
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert "no hook sparkwright_scheduler_lern; did you mean 'sparkwright_scheduler_learn'?" in failed["message"]
    assert " object at " not in failed["message"]
    skipped = [row["message"] for row in rows if row["status"] == "skipped"]
    assert len(skipped) >= 8 and all(f"see the check '{failed['check']}'" in said for said in skipped)
    (alone,) = data(str(path), "--only", "limits", code=1)["checks"]  # whoever is asked first says it
    assert "did you mean 'sparkwright_scheduler_learn'?" in alone["message"]


def test_what_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "swt_kit_raises.py"
    path.write_text("raise ZeroDivisionError('on purpose')\n")
    done = check(str(path))
    assert isinstance(done.exception, PluginError) and "\n" not in str(done.exception)
    assert "ZeroDivisionError: on purpose" in str(done.exception)


def test_options_come_from_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[drafter.lookup]\nmin_n = 5\nmax_n = 3\n")
    seen = data("lookup", "--config", str(config), "--only", "greedy text unchanged", code=1)
    assert "min_n <= max_n" in seen["checks"][0]["message"]
    assert data("lookup", "--set", "drafter.lookup.min_n=1", "--only", "greedy text unchanged")["passed"]


def test_the_list_names_every_check_and_runs_none() -> None:
    listed = data("lookup", "--list")
    assert [row["check"] for row in listed] == [e.name for e in entries_for("drafter")]
    assert "q is what is drawn from (slow)" in check("lookup", "--list").stdout


# ------------------------------------------------------------------------------------------------------ the API


@pytest.mark.parametrize("kind", KINDS)
def test_checks_have_distinct_names_and_say_what_they_prove(kind: Any) -> None:
    entries = entries_for(kind)
    assert len({e.name for e in entries}) == len(entries) >= 12
    assert all(10 < len(e.proves) < 110 and e.name == e.name.strip() for e in entries)


def test_run_raises_what_happened() -> None:
    by_name = {c.name: c for c in checks_for(TWO)}
    by_name["limits"].run()
    with pytest.raises(CheckFailed, match=r"scheduler 'twin', check 'limits': .* expected 0\.\.0"):
        next(c for c in checks_for(BAD) if c.name == "limits").run()
    with pytest.raises(Skipped, match="observer plugins have no facts"):
        next(c for c in checks_for(observers.GOOD) if c.name == "described before built").run()


def test_an_expected_failure_that_passes_is_a_failure() -> None:
    def limits(provider: Provider) -> Check:
        known = {"limits": "it is known"}
        return next(c for c in checks_for(provider, expected_failures=known) if c.name == "limits")

    assert limits(BAD).outcome().status == "expected"
    with pytest.raises(Skipped, match=r"expected to fail \(it is known\)"):
        limits(BAD).run()
    with pytest.raises(CheckFailed, match="passes, though it was expected to fail"):
        limits(TWO).run()
    with pytest.raises(ValueError, match="did you mean 'limits'"):
        list(checks_for(TWO, expected_failures={"limit": "no such check"}))


def test_options_may_be_an_instance() -> None:
    from sparkwright.core.plugins import discover

    lookup = discover().get("drafter", "lookup", "a test").provider
    options = attrs.evolve(lookup.options(), min_n=1)
    assert (
        next(c for c in checks_for(lookup, options=options) if c.name == "options round trip").outcome().status
        == "passed"
    )


@parametrize_with_checks([TWO], slow=False)
def test_under_pytest_a_check_is_a_test(check: Check) -> None:
    check.run()


@parametrize_with_checks([BAD], expected_failures={"limits": "on purpose"})
def test_under_pytest_an_expected_failure_is_a_strict_xfail(check: Check) -> None:
    if check.name == "limits":
        check.run()


def test_under_pytest_ids_and_marks_are_what_they_should_be() -> None:
    def test(check: Check) -> None: ...

    marked: Any = parametrize_with_checks([BAD], expected_failures={"limits": "known"})(test)
    (mark,) = marked.pytestmark
    by_id = {param.id: param for param in mark.args[1]}
    assert "twin-same-rounds-same-plans" in by_id
    (xfail,) = by_id["twin-limits"].marks
    assert xfail.name == "xfail" and xfail.kwargs["strict"] and xfail.kwargs["reason"] == "known"


def test_the_kit_works_without_pytest_and_is_imported_without_mlx() -> None:
    code = (
        "import sys\n"
        "sys.modules['pytest'] = None\n"
        "from sparkwright.core.testing import checks_for\n"
        "from sparkwright.core.plugins import discover\n"
        "checks = list(checks_for(discover().get('drafter', 'lookup', 'me').provider))\n"
        "assert 'mlx.core' not in sys.modules\n"
        "assert next(c for c in checks if c.name == 'limits').outcome().status == 'passed'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
