"""Rates of one configuration over kinds of prompts, temperatures and context lengths, beside plain decoding.

Plain decoding is measured in the same run, prompt by prompt, in ABBA order: a rate without it means little on another
day. This is a table of where a configuration wins and loses; a verdict on a change is what `compare` gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparkwright.core.compare import statistics as st
from sparkwright.core.compare.analysis import ArmSummary, summarise
from sparkwright.core.compare.plan import orders
from sparkwright.core.compare.prompts import load_prompts
from sparkwright.core.compare.records import ArmSpec, CompareError, Prompt, RunRecord
from sparkwright.core.compare.result import finite
from sparkwright.core.compare.store import Entry
from sparkwright.core.errors import AssemblyError, RequestError

if TYPE_CHECKING:
    from sparkwright.core.engine import Engine
    from sparkwright.core.plugins import Catalogue

FORMAT = 1
Source = str | Path | Mapping[str, Any] | None


@attrs.frozen
class Cell:
    """One kind, temperature and context length. context: prompt tokens asked for, 0 for prompts as they are.

    refused: why there are no numbers ("" if there are). ratio: decode rate over plain decoding's, paired by prompt.
    """

    kind: str
    temperature: float
    context: int
    refused: str = ""
    prompt_tokens: float = 0.0
    own: ArmSummary | None = None
    plain: ArmSummary | None = None
    ratio: st.Estimate | None = None
    pairs: tuple[tuple[RunRecord, RunRecord], ...] = ()


@attrs.frozen
class BenchResult:
    config: Mapping[str, Any]
    config_sha256: str
    environment: Mapping[str, Any]
    tokens: int
    seed: int
    cells: tuple[Cell, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON, every run included."""
        data: dict[str, Any] = finite({"format": FORMAT, **attrs.asdict(self)})
        for cell in data["cells"]:
            cell["pairs"] = [{"own": own, "plain": plain} for own, plain in cell["pairs"]]
        return data


def bench(
    base: Source = None,
    *,
    sets: Sequence[str] = (),
    prompts: str | Path | Sequence[Prompt] = "code,prose,chat",
    temperatures: Iterable[float] = (0.0, 1.0),
    contexts: Iterable[int] = (0,),
    repeats: int = 4,
    tokens: int = 64,
    seed: int = 0,
    catalogue: Catalogue | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> BenchResult:
    """Measure every combination with `repeats` prompts each.

    temperatures: put into the sampler's own `temperature` (a sampler without one is replaced by `chain` above 0).
    contexts: lengths that prompts are brought to with text put before them; 0 leaves them. A combination that cannot be
    assembled or does not fit the model's context is in the result with the reason. Raises ConfigError, CompareError.
    """
    from sparkwright.core.compare.engine_arm import environment
    from sparkwright.core.config import load_config
    from sparkwright.core.store import WeightStore

    temperatures, contexts = list(temperatures), list(contexts)
    _check(temperatures, contexts, repeats, tokens)
    given = load_prompts(prompts) if isinstance(prompts, (str, Path)) else tuple(prompts)
    kinds: dict[str, list[Prompt]] = {}
    for prompt in given:
        kinds.setdefault(prompt.kind, []).append(prompt)
    config = load_config(base, sets=sets, catalogue=catalogue)
    source = base if isinstance(base, Mapping) or base is None else str(base)
    spec = ArmSpec("A", "as configured", config.to_dict(), config.sha256, {"config": source, "sets": list(sets)})
    store, cells = WeightStore(), []
    total = len(temperatures) * len(contexts) * len(kinds)
    for temperature in temperatures:
        own_sets = [*sets, *at_temperature(config.to_dict(), temperature)]
        with ExitStack() as stack:
            try:
                session = _Session.open(stack, base, own_sets, catalogue, store, given, tokens, seed)
            except AssemblyError as error:
                refused = str(error)
                cells += [Cell(kind, temperature, context, refused) for context in contexts for kind in kinds]
                continue
            for context in contexts:
                for kind, own in kinds.items():
                    cells.append(session.cell(kind, temperature, context, own[:repeats]))
                    if progress is not None:
                        progress("cells", len(cells), total)
    return BenchResult(spec.config, spec.sha256, environment([spec], catalogue), tokens, seed, tuple(cells))


def at_temperature(config: Mapping[str, Any], temperature: float) -> list[str]:
    """The assignments that bring a configuration to a temperature; none if its sampler is greedy and so is this."""
    key = f"sampler.{config['sampler.use']}.temperature"
    if key in config:
        return [f"{key}={float(temperature)}"]
    return [] if temperature == 0 else ["sampler.use=chain", f"sampler.chain.temperature={float(temperature)}"]


@attrs.frozen(eq=False)
class _Session:
    """The three engines of one temperature: as configured, plain, and as configured with its stages timed apart."""

    own: Engine
    plain: Engine
    staged: Engine
    filler: tuple[int, ...]
    tokens: int
    seed: int

    @classmethod
    def open(
        cls, stack: ExitStack, base: Source, sets: Sequence[str], catalogue: Catalogue | None, store: Any,
        prompts: Sequence[Prompt], tokens: int, seed: int,
    ) -> _Session:  # fmt: skip
        from sparkwright.core.assembly import assemble
        from sparkwright.core.config import load_config

        engines = [
            stack.enter_context(assemble(load_config(base, sets=[*sets, *more], catalogue=catalogue), store=store))
            for more in ([], ["drafter.use=none"], ["engine.stage_times=true"])
        ]
        filler = tuple(token for prompt in prompts for token in _encode(engines[0], prompt))
        warm = list(_encode(engines[0], prompts[0]))
        for engine in engines:
            engine.complete(warm, max_tokens=min(tokens, 16), seed=seed, stop=(), ignore_eos=True)
        own, plain, staged = engines
        return cls(own, plain, staged, filler, tokens, seed)

    def cell(self, kind: str, temperature: float, context: int, prompts: Sequence[Prompt]) -> Cell:
        room = self.own.target.facts.context - self.tokens
        asked = [self._prompt(prompt, context) for prompt in prompts]
        longest = max(map(len, asked))
        if longest > room:
            why = (
                f"{longest} prompt tokens and {self.tokens} more do not fit the model's context of {room + self.tokens}"
            )
            return Cell(kind, temperature, context, why)
        spec = {name: ArmSpec(name, label, self._config(name), "") for name, label in (("A", "own"), ("B", "plain"))}
        entries = []
        for index, (ids, order) in enumerate(zip(asked, orders("AB", len(asked), self.seed), strict=True)):
            runs = {name: self._run(self.own if name == "A" else self.plain, ids) for name in order}
            entries.append(Entry("pair", index, prompts[index].id, runs))
        staged = [Entry("profile", 0, prompts[0].id, {"A": self._run(self.staged, asked[0])})]
        logs = [
            math.log(a / b)
            for e in entries
            if (a := e.runs["A"].decode_rate) is not None and (b := e.runs["B"].decode_rate) is not None
        ]
        return Cell(
            kind,
            temperature,
            context,
            prompt_tokens=sum(map(len, asked)) / len(asked),
            own=summarise(spec["A"], entries, staged),
            plain=summarise(spec["B"], entries, []),
            ratio=st.estimate(logs) if logs else None,
            pairs=tuple((e.runs["A"], e.runs["B"]) for e in entries),
        )

    def _config(self, name: str) -> Mapping[str, Any]:
        config: Mapping[str, Any] = (self.own if name == "A" else self.plain).config.to_dict()
        return config

    def _prompt(self, prompt: Prompt, context: int) -> list[int]:
        """The prompt's tokens, brought to `context` of them: text before it if it is short, its end if it is long."""
        ids = list(_encode(self.own, prompt))
        if not context:
            return ids
        missing = max(0, context - len(ids))
        before = [self.filler[i % len(self.filler)] for i in range(missing)]
        return (before + ids)[-context:]

    def _run(self, engine: Engine, ids: list[int]) -> RunRecord:
        from sparkwright.core.compare.engine_arm import record

        return record(engine.complete(ids, max_tokens=self.tokens, seed=self.seed, stop=(), ignore_eos=True))


def _encode(engine: Engine, prompt: Prompt) -> Sequence[int]:
    def encode(parts: Any) -> list[int]:
        text = parts.target.text
        if prompt.chat:
            try:
                return list(text.encode_chat([{"role": "user", "content": prompt.text}]))
            except RequestError:
                return list(text.encode(prompt.text))  # no chat format: the same words, as they are
        return list(text.encode(prompt.text))

    ids: list[int] = engine.run(encode)
    return ids


def _check(temperatures: Sequence[float], contexts: Sequence[int], repeats: int, tokens: int) -> None:
    for name, good, found, meant in (
        ("--temps", bool(temperatures) and all(t >= 0 and math.isfinite(t) for t in temperatures), temperatures,
         "temperatures of 0 or more"),
        ("--contexts", bool(contexts) and all(c >= 0 for c in contexts), contexts, "numbers of tokens, 0 or more"),
        ("--repeats", repeats >= 1, repeats, "at least one prompt for each combination"),
        ("--tokens", tokens >= 2, tokens, "at least 2, so that there is a decode rate"),
    ):  # fmt: skip
        if not good:
            raise CompareError(f"{name} is {found}; expected {meant}")
