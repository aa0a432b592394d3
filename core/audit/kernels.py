"""`audit_kernels`: do the selected kernels compute what their ops mean, on the live inputs of a real generation?

What is compared, and within which bound, is `core.check`; here a generation is run with it, and all ops are tallied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from sparkwright.core.assembly import assemble
from sparkwright.core.audit.identity import changed
from sparkwright.core.check import Excess, LiveCheck, Tally
from sparkwright.core.config import Config
from sparkwright.core.contracts import Promise


@attrs.frozen
class KernelsResult:
    """ops: what was seen of each op and backend that is not the reference; references: ops that ran as such; declined:
    what the backends that were asked before said about it."""

    promise: Promise
    config_sha256: str
    texts: int
    tokens: int
    submitted: int
    ops: tuple[Tally, ...]
    references: tuple[str, ...]
    first: Excess | None
    declined: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.first is None and any(op.calls for op in self.ops)

    @property
    def meaning(self) -> str:
        if self.first is not None:
            return f"A kernel does not compute what its op means: {self.first}."
        if not self.passed:
            why = "; ".join(self.declined) or "kernels.use names no other backend"
            return (
                f"Nothing was compared: every op ran as its own reference ({why}). That is no fault of a kernel and no "
                "proof of one; run this audit where a kernel backend covers ops."
            )
        calls = sum(op.calls for op in self.ops)
        return (
            f"In {calls:,} live calls every kernel stayed within its bound of the reference and gave the same bits "
            "twice; it says nothing about shapes and inputs that these texts do not reach."
        )

    def to_dict(self) -> dict[str, Any]:
        data = attrs.asdict(self)
        for op in data["ops"]:
            op["rows"] = sorted(op["rows"])
        data["first_text"] = None if self.first is None else str(self.first)
        return data | {"passed": self.passed, "meaning": self.meaning}


def audit_kernels(
    config: Config,
    prompts: Sequence[str | Sequence[int]],
    *,
    seed: int = 0,
    max_tokens: int = 32,
    progress: Callable[[str, int, int], None] | None = None,
) -> KernelsResult:
    """Generate from each prompt as configured, every kernel checked; goes on after an excess with the reference."""
    check = LiveCheck(fatal=False)
    config = changed(config, {"kernels.check": False})
    with assemble(config, progress=progress, wrap_op=check.wrap) as engine:
        check.watch(engine.target)
        results = []
        for done, prompt in enumerate(prompts, start=1):
            results.append(engine.complete(prompt, seed=seed, max_tokens=max_tokens, ignore_eos=True))
            if progress is not None:
                progress("kernels", done, len(prompts))
        said = dict.fromkeys(
            f"{name}: {why or 'declined'}"
            for choice in engine.run(lambda parts: parts.kernel_choices)
            if choice.is_reference
            for name, why in zip(choice.declined, choice.reasons, strict=True)
        )
        return KernelsResult(
            engine.promise, engine.config_sha256, len(results), sum(len(r.tokens) for r in results),
            sum(r.stats.submitted for r in results), tuple(check.tallies.values()),
            tuple(sorted(check.references)), check.first, tuple(said),
        )  # fmt: skip
