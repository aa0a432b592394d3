"""`compare(...)`: one comparison from configurations to a result, on disk as it goes."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparkwright.core.compare import difference
from sparkwright.core.compare.plan import make_plan
from sparkwright.core.compare.prompts import load_prompts
from sparkwright.core.compare.records import ArmSpec, CompareError, Opener, Prompt
from sparkwright.core.compare.result import CompareResult, Question, conclude
from sparkwright.core.compare.runner import Progress, Runner, Settings, no_progress
from sparkwright.core.compare.store import Store, write_atomically
from sparkwright.core.errors import OutputError

if TYPE_CHECKING:
    from sparkwright.core.plugins import Catalogue

Prompts = str | Path | Sequence[str | Prompt]


def compare(
    base: str | Path | Mapping[str, Any] | None = None,
    *,
    swap: str | Sequence[str] = (),
    b: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]] = (),
    sets: Sequence[str] = (),
    prompts: Prompts = "all",
    pairs: int = 20,
    tokens: int = 128,
    seed: int = 0,
    ignore_eos: bool = True,
    out: str | Path | None = None,
    allow: Iterable[str] = (),
    isolate: bool = False,
    self_test: int = 0,
    gate: int = 3,
    profile: int = 3,
    cooldown: float = 0.0,
    margin: float = 0.03,
    alpha: float = 0.05,
    command: str = "",
    progress: Progress = no_progress,
    announce: Callable[[list[str]], None] | None = None,
    catalogue: Catalogue | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CompareResult:
    """Measure whether a candidate is faster than the base, in pairs of runs, and say so with an interval.

    base: a TOML file or a dict. swap: `KEY=VALUE`, one candidate arm each. b: other configurations, one candidate each.
    sets: assignments for every arm. prompts: a bundled set ("code", "prose", "chat", "long-context", "all"), a file, or
    prompts. tokens: of each timed run, exactly so many unless `ignore_eos` is False. out: directory for the pairs
    and the reports; the same call continues an interrupted one. allow: slots that may differ besides. self_test:
    measure the base against itself so many times. margin: the difference that would matter. alpha: false alarms
    that are accepted, over all candidates together. announce: told in lines what differs, before anything is
    assembled. catalogue: plugins to choose from, otherwise what is installed.

    Raises CompareError, ConfigError, OutputError; pairs measured before are kept in `out`.
    """
    from sparkwright.core.compare.engine_arm import EngineOpener, engine_specs, environment, swapped_key
    from sparkwright.core.compare.isolated import IsolatedOpener

    swaps = [swap] if isinstance(swap, str) else list(swap)
    others = [b] if isinstance(b, (str, Path, Mapping)) else list(b)
    if self_test and (swaps or others):
        raise CompareError("a self-test compares the base with itself; leave out --swap and --b")
    if isolate and catalogue is not None:
        raise CompareError("isolated arms find installed plugins only; leave out either isolate or catalogue")
    given = resolve_prompts(prompts)
    specs = engine_specs(base, swaps, others, sets, catalogue)
    asked = [[swapped_key(s)] for s in swaps]
    differences = {
        spec.name: difference.check(specs[0], spec, key, allow)
        for spec, key in zip(specs[1:], [*asked, *([None] * len(others))], strict=True)
    }
    if announce is not None:
        announce([line for spec in specs[1:] for line in difference.described(spec, differences[spec.name])])
    opener: Opener = IsolatedOpener() if isolate else EngineOpener(catalogue=catalogue)
    settings = Settings(tokens, ignore_eos, seed, gate, profile=profile, cooldown=cooldown)
    return compare_specs(
        specs, given, opener, settings,
        pairs=pairs, out=out, differences=differences, self_test=self_test, margin=margin, alpha=alpha,
        command=command, environment={**environment(specs, catalogue), "isolated": isolate}, progress=progress,
        sleep=sleep,
    )  # fmt: skip


def resolve_prompts(prompts: Prompts) -> tuple[Prompt, ...]:
    if isinstance(prompts, (str, Path)):
        return load_prompts(prompts)
    found = tuple(p if isinstance(p, Prompt) else Prompt(f"prompt-{i}", "given", p) for i, p in enumerate(prompts, 1))
    empty = next((p.id for p in found if not p.text.strip()), None)
    if empty is not None:
        raise CompareError(f"{empty} is empty; a prompt needs text")
    return found


def compare_specs(
    specs: Sequence[ArmSpec],
    prompts: Sequence[Prompt],
    opener: Opener,
    settings: Settings,
    *,
    pairs: int,
    out: str | Path | None,
    differences: Mapping[str, tuple[difference.Difference, ...]] | None = None,
    self_test: int = 0,
    margin: float = 0.03,
    alpha: float = 0.05,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
    sleep: Callable[[float], None] = time.sleep,
) -> CompareResult:
    """`compare` for arms of any kind: what it does once configurations have become specs."""
    _check_numbers(settings, margin, alpha, self_test)
    specs = list(specs)
    if self_test:
        if pairs < 2:
            raise CompareError(f"--pairs is {pairs}, but a self-test needs at least 2 in each repetition")
        specs = [specs[0], attrs.evolve(specs[0], name="B", label="base again")]
    elif len(specs) < 2:
        raise CompareError("there is nothing to compare: give --swap KEY=VALUE, --b FILE, or --self-test")
    question = Question(
        specs=tuple(specs),
        prompts=tuple(prompts),
        plan=make_plan([spec.name for spec in specs], prompts, pairs, settings.seed, max(1, self_test)),
        settings=settings,
        differences=differences or {},
        margin=margin,
        alpha=alpha,
        stretch=pairs if self_test else 0,
        command=command,
        environment=environment or {},
    )
    if out is not None:
        return _measure(question, opener, Path(out).expanduser(), True, progress, sleep)
    with tempfile.TemporaryDirectory(prefix="sparkwright-compare-") as folder:
        return _measure(question, opener, Path(folder), False, progress, sleep)


def _measure(
    question: Question, opener: Opener, folder: Path, keep: bool, progress: Progress, sleep: Callable[[float], None]
) -> CompareResult:
    """Run, and whatever ends it, leave reports of what there is."""
    q, directory = question, folder if keep else None
    with Store(folder, _header(question)) as store:
        try:
            Runner(q.specs, q.prompts, q.plan, q.settings, opener, store, progress=progress, sleep=sleep).run()
        except BaseException as error:
            if keep:
                _write_what_there_is(
                    folder, conclude(question, store.entries, str(error) or type(error).__name__, directory)
                )
            raise
        done = conclude(question, store.entries, directory=directory)
        if keep:
            write_reports(folder, done)
        return done


def _write_what_there_is(folder: Path, partial: CompareResult) -> None:
    try:
        write_reports(folder, partial)
    except OutputError:
        return  # the disk is what failed: the error under way says so, and the pairs are there


def write_reports(folder: Path, result: CompareResult) -> None:
    """result.json, result.md and report.html, each whole or not at all."""
    data = result.to_dict()
    write_atomically(folder / "result.json", json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomically(folder / "result.md", result.to_markdown())
    write_atomically(folder / "report.html", result.to_html())


def _check_numbers(settings: Settings, margin: float, alpha: float, self_test: int) -> None:
    for name, value, good, meant in (
        ("--tokens", settings.tokens, settings.tokens >= 2, "at least 2, so that there is a decode rate"),
        ("--margin", margin, 0 < margin < 1, "a fraction between 0 and 1, such as 0.03"),
        ("--alpha", alpha, 0 < alpha < 1, "a fraction between 0 and 1, such as 0.05"),
        ("--cooldown", settings.cooldown, settings.cooldown >= 0, "seconds, 0 or more"),
        ("--self-test", self_test, self_test >= 0, "a number of repetitions"),
    ):
        if not good:
            raise CompareError(f"{name} is {value}; expected {meant}")


def _header(q: Question) -> dict[str, Any]:
    """What must be the same for pairs to belong together. The number of pairs is in it: adding pairs after a look
    at the verdict would be a test with other odds."""
    said = json.dumps([attrs.asdict(prompt) for prompt in q.prompts], sort_keys=True, ensure_ascii=False)
    return {
        "command": q.command,
        "arms": {spec.name: {"label": spec.label, "sha256": spec.sha256} for spec in q.specs},
        "configs": {spec.name: dict(spec.config) for spec in q.specs},
        "prompts_sha256": hashlib.sha256(said.encode()).hexdigest(),
        "pairs": len(q.plan.groups),
        "stretch": q.stretch,
        "settings": attrs.asdict(q.settings),
        "environment": dict(q.environment),
    }
