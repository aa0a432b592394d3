"""Checks of verifiers: verdicts one by one, and the law of what they emit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from sparkwright.core.contracts import (
    INCOMPLETE,
    NON_FINITE,
    Dense,
    Distribution,
    Draft,
    PointMass,
    ProposalKind,
    Sparse,
    VerifierFacts,
)
from sparkwright.core.errors import PluginError
from sparkwright.core.randomness import Keys, Purpose
from sparkwright.core.roles import Verifier
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.common import facts_of, suits
from sparkwright.core.testing.ground import PLAIN, Entry, Ground, same_text, text
from sparkwright.core.testing.laws import law_of, table_subject

V = 11
IDENTITIES = ("identity", "identity-up-to-ties")


@attrs.frozen(eq=False)
class Problem:
    """A draft, the target's distribution of its n + 1 rows, and the keys of the round."""

    draft: Draft
    p: Distribution
    keys: Keys
    drafts: list[int]


def problem(kind: ProposalKind, n: int, seed: int, deterministic: bool, cut: bool = False) -> Problem:
    """q near p, drafts drawn from q under the round's draft keys. cut: p excludes the first draft."""
    import mlx.core as mx

    from sparkwright.core.draw import gumbel_argmax

    rng = np.random.default_rng([seed, n])
    logits = rng.normal(size=(n + 1, V)).astype(np.float32) * 1.5
    q = logits[:n] + rng.normal(size=(n, V)).astype(np.float32)
    keys = Keys(seed, 0, 20 + seed)
    log_q = mx.array(q) - mx.logsumexp(mx.array(q), axis=-1, keepdims=True)
    ids = mx.argsort(-log_q, axis=-1)[:, :4].astype(mx.int32)
    few = mx.take_along_axis(log_q, ids, axis=-1)
    few = few - mx.logsumexp(few, axis=-1, keepdims=True)
    noise_keys = keys.array("draft", n)
    if kind == "dense":
        tokens, proposal = gumbel_argmax(log_q, noise_keys), Dense(log_q)
    elif kind == "sparse":
        pick = gumbel_argmax(few, noise_keys)
        tokens, proposal = mx.take_along_axis(ids, pick[:, None], axis=-1)[:, 0], Sparse(ids, few)  # type: ignore
    else:
        tokens, proposal = mx.argmax(log_q, axis=-1).astype(mx.int32), PointMass()  # type: ignore[assignment]
    drafts = [int(t) for t in np.array(tokens)]
    if cut:
        logits[0, drafts[0]] = -np.inf
    given = mx.array(logits)
    log_p = given - mx.logsumexp(given, axis=-1, keepdims=True)
    mode = mx.argmax(given, axis=-1).astype(mx.int32)
    if deterministic:
        log_p = mx.where(mx.arange(V) == mode[:, None], 0.0, -mx.inf)
    flags = mx.zeros((n + 1,), dtype=mx.int32)
    return Problem(
        Draft(tokens.astype(mx.int32), proposal),
        Distribution(log_p, flags, mode if deterministic else None),
        keys,
        drafts,
    )


def driven(ground: Ground, work: Callable[[Verifier, VerifierFacts, list[bool]], None]) -> None:
    """`work(verifier, facts, [deterministic or not])` in the engine's thread."""
    with ground.engine(suits(ground)) as engine:

        def run(parts: Any) -> None:
            facts: VerifierFacts = parts.verifier.facts
            work(parts.verifier, facts, [True] if facts.deterministic_only else [False, True])

        engine.run(run)


def verdict(verifier: Verifier, made: Problem, keys: Any = None) -> list[int]:
    array = verifier.verify(made.draft, made.p, made.keys if keys is None else keys).array
    return [int(x) for x in np.array(array)]


# --------------------------------------------------------------------------------------------------- one verdict


def _well_formed(ground: Ground) -> None:
    def work(verifier: Verifier, facts: VerifierFacts, modes: list[bool]) -> None:
        import mlx.core as mx

        for kind in sorted(facts.proposals):
            for n in range(1, 8):
                for deterministic in modes:
                    made = problem(kind, n, n, deterministic)
                    where = f"{n} {kind} drafts"
                    try:
                        array = verifier.verify(made.draft, made.p, made.keys).array
                    except PluginError as error:
                        raise CheckFailed(f"{where}: {error}") from None
                    if not mx.issubdtype(array.dtype, mx.integer):
                        raise CheckFailed(f"{where}: the verdict's array is {array.dtype}, expected int32 [{3 + n}]")
                    accepted, token, flags, *drafts = (int(x) for x in np.array(array))
                    if not 0 <= accepted <= n or not 0 <= token < V:
                        raise CheckFailed(
                            f"{where}: it accepts {accepted} and draws token {token}, expected 0..{n} and 0..{V - 1}"
                        )
                    if drafts != made.drafts:
                        raise CheckFailed(f"{where}: the verdict repeats drafts as {drafts}, expected {made.drafts}")
                    if flags & ~7:
                        raise CheckFailed(f"{where}: flags are {flags}, expected a sum of 1, 2 and 4")

    driven(ground, work)


def _same_keys(ground: Ground) -> None:
    def work(verifier: Verifier, facts: VerifierFacts, modes: list[bool]) -> None:
        for kind in sorted(facts.proposals):
            for seed in range(6):
                made = problem(kind, 4, seed, modes[0])
                first = verdict(verifier, made)
                again = [verdict(verifier, problem(kind, 4, seed, modes[0]))]
                verdict(verifier, problem(kind, 2, seed + 90, modes[0]))
                again.append(verdict(verifier, problem(kind, 4, seed, modes[0])))
                if again != [first, first]:
                    raise CheckFailed(
                        f"the same round twice gives {first} and {again[0]}, {again[1]}; decide by its keys alone"
                    )

    driven(ground, work)


class _Noted:
    """Keys that write down what is asked of them."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self.asked = keys, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)

    def array(self, purpose: Purpose, n: int, first: int = 1) -> Any:
        self.asked.append(purpose)
        return self._keys.array(purpose, n, first)


def _own_keys(ground: Ground) -> None:
    def work(verifier: Verifier, facts: VerifierFacts, modes: list[bool]) -> None:
        asked: set[str] = set()
        for kind in sorted(facts.proposals):
            for deterministic in modes:
                keys = _Noted(problem(kind, 3, 1, deterministic).keys)
                verdict(verifier, problem(kind, 3, 1, deterministic), keys)
                asked |= set(keys.asked)
        allowed = {"target", "accept", "residual"} if facts.noise == "target" else {"accept", "residual"}
        if extra := sorted(asked - allowed):
            raise CheckFailed(
                f"it draws on '{extra[0]}' keys, which are the {'drafter' if extra[0] == 'draft' else 'plain draw'}'s; "
                f"expected {' and '.join(sorted(allowed))} alone (facts.noise is {facts.noise!r}): noise that decided "
                "a draft must not decide again"
            )

    driven(ground, work)


def _flags(ground: Ground) -> None:
    def work(verifier: Verifier, facts: VerifierFacts, modes: list[bool]) -> None:
        import mlx.core as mx

        for bit, name in ((INCOMPLETE, "INCOMPLETE"), (NON_FINITE, "NON_FINITE")):
            for kind in sorted(facts.proposals):
                made = problem(kind, 3, 2, modes[0])
                p = attrs.evolve(made.p, flags=mx.full((4,), bit, dtype=mx.int32))
                flags = verdict(verifier, attrs.evolve(made, p=p))[2]
                if not flags & bit:
                    raise CheckFailed(
                        f"all rows of p are marked {name} and the verdict's flags are {flags}; expected bit {bit} "
                        "to be passed on, or the engine takes the round as it is"
                    )
                flags = verdict(verifier, made)[2]
                if flags & (INCOMPLETE | NON_FINITE):
                    raise CheckFailed(f"no row of p is marked and the verdict's flags are {flags}; expected 0 or 2")

    driven(ground, work)


def _excluded(ground: Ground) -> None:
    def work(verifier: Verifier, facts: VerifierFacts, modes: list[bool]) -> None:
        if facts.promise == "lossy":
            raise Skipped("it promises nothing of the target's distribution, and says so")
        for kind in sorted(facts.proposals):
            for seed in range(20):
                made = problem(kind, 3, seed, modes[0], cut=True)
                accepted, token, *_ = verdict(verifier, made)
                if accepted or token == made.drafts[0]:
                    raise CheckFailed(
                        f"the target gives token {made.drafts[0]} no probability and it is emitted ({kind} drafts); "
                        "accept with min(1, p / q) and draw corrections from p"
                    )

    driven(ground, work)


def _on_device(ground: Ground) -> None:
    def work(verifier: Verifier, facts: VerifierFacts, modes: list[bool]) -> None:
        import mlx.core as mx

        for kind in sorted(facts.proposals):
            made = problem(kind, 3, 3, modes[0])

            def traced(log_p: Any, flags: Any, tokens: Any, made: Problem = made) -> Any:
                p = attrs.evolve(made.p, log_p=log_p, flags=flags)
                return verifier.verify(attrs.evolve(made.draft, tokens=tokens), p, made.keys).array

            try:
                mx.compile(traced)(made.p.log_p, made.p.flags, made.draft.tokens)  # traced, not run
            except Exception as error:
                if "attempting to eval" in str(error).lower():
                    raise CheckFailed(
                        "it reads an array to the host (item, tolist, NumPy, an `if` on an array); expected one lazy "
                        "graph: the engine reads the verdict in one transfer"
                    ) from None
                raise Skipped(f"it cannot be traced by mx.compile: {error}") from None

    driven(ground, work)


def _leading_axes(ground: Ground) -> None:
    def work(verifier: Verifier, facts: VerifierFacts, modes: list[bool]) -> None:
        import mlx.core as mx

        from sparkwright.core.audit.subjects import TrialKeys

        plugin = verifier._manager.get_plugin(f"verifier:{verifier.name}")
        if not getattr(plugin, "leading_axes", False):
            raise Skipped("it does not say leading_axes = True, so audits call it trial by trial")
        for kind in sorted(facts.proposals):
            single = [problem(kind, 3, seed, modes[0]) for seed in range(5)]
            keys = TrialKeys(np.array([m.keys.seed for m in single], dtype=np.uint64), 20)
            stacked = _stacked(single)
            array = plugin.sparkwright_verifier_verify(draft=stacked.draft, p=stacked.p, keys=keys).array  # type: ignore
            got = np.array(array).tolist()
            for i, made in enumerate(single):
                alone = verdict(verifier, attrs.evolve(made, keys=Keys(made.keys.seed, 0, 20)))
                if got[i] != alone:
                    raise CheckFailed(f"five rounds at once give {got[i]} for round {i}, alone it is {alone}")
            mx.eval(array)

    driven(ground, work)


def _stacked(made: list[Problem]) -> Problem:
    import mlx.core as mx

    first = made[0]
    match first.draft.proposal:
        case Dense():
            proposal: Any = Dense(mx.stack([m.draft.proposal.log_q for m in made]))  # type: ignore[union-attr]
        case Sparse():
            proposal = Sparse(
                mx.stack([m.draft.proposal.ids for m in made]),  # type: ignore[union-attr]
                mx.stack([m.draft.proposal.log_q for m in made]),  # type: ignore[union-attr]
            )
        case _:
            proposal = PointMass()
    modes = [m.p.mode for m in made if m.p.mode is not None]
    p = Distribution(
        mx.stack([m.p.log_p for m in made]), mx.stack([m.p.flags for m in made]), mx.stack(modes) if modes else None
    )
    return Problem(Draft(mx.stack([m.draft.tokens for m in made]), proposal), p, first.keys, [])


# ---------------------------------------------------------------------------------------------------------- texts


def _said(ground: Ground) -> None:
    facts = facts_of(ground)
    with ground.engine(suits(ground)) as engine:
        promise = engine.complete([1, 2, 3], max_tokens=4).promise
    wanted = facts.promise if not facts.deterministic_only else facts.deterministic_promise
    if promise != wanted:
        raise CheckFailed(f"its facts promise {wanted!r} and a result says {promise!r}")


def _greedy(ground: Ground) -> None:
    facts = facts_of(ground)
    if facts.deterministic_promise not in IDENTITIES:
        raise Skipped(f"with a deterministic sampler it promises {facts.deterministic_promise}, not the same tokens")
    with ground.engine() as engine, ground.engine(PLAIN) as plain:
        for seed in range(2):
            same_text(text(engine, seed), text(plain, seed), "greedy text with this verifier, against plain decoding")


def _identity(ground: Ground) -> None:
    facts = facts_of(ground)
    if facts.promise not in IDENTITIES or facts.deterministic_only:
        raise Skipped(
            f"with a sampler that draws it promises {'nothing' if facts.deterministic_only else facts.promise}"
        )
    with ground.engine(suits(ground)) as engine, ground.engine(suits(ground), PLAIN) as plain:
        for seed in range(4):
            what = "text at temperature 1 with this verifier, against plain decoding with the same seed"
            same_text(text(engine, seed), text(plain, seed), what)


def _law(ground: Ground) -> None:
    facts = facts_of(ground)
    if facts.promise == "lossy":
        raise Skipped("it promises nothing of the target's distribution, and says so")
    if facts.deterministic_only:
        raise Skipped("it takes no sampler that draws")
    for kind in ("dense", "sparse", "point"):
        if kind in facts.proposals:
            law_of(
                table_subject(ground, kind, verifier=True), "; accept with min(1, p / q), correct from max(p - q, 0)"
            )


CHECKS = (
    Entry("verdicts are well formed", "shape, dtype, ranges and flags, for 1 to 7 drafts of every proposal it takes",
          _well_formed),
    Entry("same keys, same verdict", "a verdict is a function of the round and its keys", _same_keys),
    Entry("its own keys", "no noise that decided a draft decides again", _own_keys),
    Entry("flags are passed on", "rows that are not complete or not finite are said so", _flags),
    Entry("excluded tokens", "what the target gives no probability is never emitted", _excluded),
    Entry("nothing read to the host", "a verdict is one lazy graph", _on_device),
    Entry("leading axes", "many rounds at once are decided as each alone", _leading_axes),
    Entry("the promise is said", "a result carries the promise of the facts", _said),
    Entry("greedy text unchanged", "with a deterministic sampler the text is plain decoding's", _greedy),
    Entry("text unchanged", "where identity is promised, the text at temperature 1 is plain decoding's", _identity),
    Entry("law of the text", "the text has the target's law, for every proposal it takes (statistical)", _law, True),
)  # fmt: skip
