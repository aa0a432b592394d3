"""The scheduler that drafts only when drafting pays, by measured costs; plain decoding is one of its options.

Two questions are kept apart. *Whether to draft* is answered before drafting, from past rounds: does drafting give more
tokens for its time than plain decoding? *How deep* is answered position by position. Without confidences the depth is
the one with the best expected rate under past acceptance. With confidences draft k is submitted if, for some depth
d >= k, the tokens expected beyond k - 1 are worth more than their cost at the going rate; confidences that have not
been looked at yet are replaced by their past means, which is how a step in the cost curve is crossed.

The going rate is the long-run rate of this request (never less than plain decoding), not the rate of the round at
hand: in a renewal process the policy that compares marginal gain with the long-run rate is the best one (Dinkelbach
1967), and comparing with the round's own rate goes too deep in poor rounds and not deep enough in good ones. With equal
rounds the two rules are the same.

When drafting does not pay it is parked and probed again. Gaps between probes double from a start proportional to what
a probe is expected to lose, up to the length at which probing costs a fixed small share of the time; so the loss
against plain decoding is bounded on any machine, and no text and no drafter is ever given up for good, except where
the curves say that drafting could not pay even if every draft were accepted.

A clock is never read, and no state outlives a request.
"""

from __future__ import annotations

import attrs

from sparkwright.core.contracts import Provider, RoundReport, SchedulerFacts, Site, option
from sparkwright.core.hookspecs import hookimpl
from sparkwright.plugins.schedulers.curves import Costs, assumed, costs
from sparkwright.plugins.schedulers.evidence import Acceptance, Rate, Reliability

_BELIEF = 0.75  # acceptance before anything was seen
_BELIEF_ROUNDS = 1.0  # rounds it counts for, position by position: where drafts cost next to nothing, all are rejected
# for a long time before it gives way, and what next to nothing is, is measured no better than to a few hundredths
_FIRST_GAP = 12.0  # plain rounds before the first probe, for a probe that loses one plain decode
_LONGEST_GAP = 512.0
_LOOK_DEEPER = 24  # every so many active rounds one goes deeper than it seems worth
_PRIOR = 3.0  # drafted rounds that the belief in the rate counts for
_COME_BACK = 0.02  # how much better than plain decoding drafting must look to be taken up again
_HOPE = 3.0  # imagined successes behind position 1 in such a round
_FORCED = 2  # of so many probes that did not pay one submitted a draft whatever its confidence said


@attrs.frozen
class CostAwareOptions:
    memory: int = option(
        512, "rounds after which evidence has lost most of its weight", attrs.validators.in_(range(8, 65537))
    )
    probe_share: float = option(
        0.0025,
        "share of the time that probing may cost while drafting does not pay",
        attrs.validators.and_(attrs.validators.gt(0.0), attrs.validators.le(0.1)),
    )
    confidences: bool = option(True, "use the drafter's confidences where it has them (one more transfer a round)")


@attrs.define(eq=False)
class RequestState:
    """All that is known of one request."""

    acceptance: Acceptance
    reliability: Reliability
    rate: Rate
    confident: bool
    # Parking
    parked: bool = False
    gap: float = 0.0  # plain rounds to the next probe; 0: not parked yet
    waited: int = 0
    failed: int = 0  # probes that did not pay
    active_rounds: int = 0
    # This round
    limit: int = 0
    probing: bool = False
    deeper: bool = False
    going: float = 1.0
    survival: float = 1.0


def _rates(means: list[float], costs: Costs, limit: int) -> list[float]:
    """Expected tokens for their cost of depths 1..limit, in tokens a plain decode."""
    out, survival, tokens = [], 1.0, 1.0
    for d in range(1, limit + 1):
        survival *= means[d - 1]
        tokens += survival
        out.append(tokens / costs.drafted[d])
    return out


@attrs.define(eq=False)
class CostAware:
    options: CostAwareOptions
    costs: Costs
    confident: bool
    measured: bool

    @hookimpl
    def sparkwright_scheduler_start(self) -> RequestState:
        keep = 1.0 - 1.0 / self.options.memory
        depth = self.costs.depth
        belief = max(_rates([_BELIEF] * depth, self.costs, depth), default=0.0)
        return RequestState(
            acceptance=Acceptance(depth, keep, _BELIEF, _BELIEF_ROUNDS),
            reliability=Reliability(depth, keep),
            rate=Rate(keep, belief * _PRIOR * 2, _PRIOR * 2, _PRIOR),
            confident=self.confident,
        )

    @hookimpl
    def sparkwright_scheduler_plan(self, state: RequestState, limit: int) -> int:
        limit = min(limit, self.costs.depth)
        state.limit, state.probing, state.deeper = limit, False, False
        if limit < 1 or self.costs.hopeless():
            return 0
        if state.confident:
            rates, best, depth, loss = [], state.rate.value, limit, state.rate.loss
        else:
            rates = _rates(state.acceptance.means(), self.costs, limit)
            best = max(rates)
            depth = rates.index(best) + 1
            loss = (1.0 - best) * self.costs.drafted[depth]
        # Coming back asks for a little more than staying, or a near tie would cross over and back for ever.
        state.parked = best < (1.0 + _COME_BACK if state.parked else 1.0)
        state.going = 1.0 if state.parked or not state.confident else max(1.0, best)
        turn = (state.failed, _FORCED) if state.parked else (state.active_rounds, _LOOK_DEEPER)
        state.deeper = turn[0] % turn[1] == turn[1] - 1
        if state.deeper and not state.confident:
            hoped = _rates(state.acceptance.means(_HOPE), self.costs, limit)
            further = hoped.index(max(hoped)) + 1
            if max(hoped) > 1.0 and further > depth:
                depth = further
                loss = (1.0 - rates[depth - 1]) * self.costs.drafted[depth]
        if state.parked and not self._probe_due(state, loss):
            return 0
        state.probing = state.parked
        state.survival = 1.0
        return depth

    @hookimpl
    def sparkwright_scheduler_rests(self, state: RequestState) -> bool:
        # Nothing is learned from plain rounds, so nothing is lost by deciding on the whole gap beforehand.
        return self.costs.hopeless() or (state.parked and state.waited + 1 < state.gap)

    def _probe_due(self, state: RequestState, loss: float) -> bool:
        """Whether the time has come, when a probe is expected to lose `loss` plain decodes."""
        loss = max(loss, 0.02) + self.costs.resume
        shortest, longest = max(2.0, _FIRST_GAP * loss), min(_LONGEST_GAP, loss / self.options.probe_share)
        state.gap = min(max(state.gap, shortest), max(longest, shortest))
        return state.waited >= state.gap

    @hookimpl
    def sparkwright_scheduler_more(self, state: RequestState, depth: int, confidence: float) -> bool:
        if depth > state.limit:
            return False
        reliability, drafted = state.reliability, self.costs.drafted
        state.survival *= reliability.corrected(depth - 1, confidence)
        survival, gain, base = state.survival, 0.0, drafted[depth - 1]
        mean = confidence
        for d in range(depth, state.limit + 1):
            if d > depth:
                mean = reliability.mean(d - 1, mean)
                survival *= mean
            gain += survival
            if gain > state.going * (drafted[d] - base):
                return True
        if state.deeper:  # once a round
            state.deeper = False
            return True
        return False

    @hookimpl
    def sparkwright_scheduler_learn(self, state: RequestState, report: RoundReport) -> None:
        state.acceptance.age()
        state.rate.age()
        if report.drafted == 0:  # plain, by plan or because the drafter had nothing to say
            state.waited += 1
            return
        if report.confidences:
            state.confident = state.confident or self.options.confidences
            state.reliability.add(report.confidences, report.accepted, report.submitted, report.cut)
        state.acceptance.add(report.accepted, report.submitted, report.cut)
        cost = self.costs.drafted[min(report.submitted, self.costs.depth)]
        if not report.cut:
            state.rate.add(1 + report.accepted, cost)
        if not state.probing:
            state.active_rounds += 1
            state.gap *= 0.97
            return
        if 1 + report.accepted > cost:
            # Evidence that turned needs no patience: the probe is repeated at once, and as it was. Were a forced draft
            # that paid followed by a probe left to confidences not yet corrected, that one would submit nothing, show
            # nothing and count as lost.
            return
        state.failed += 1
        state.waited = 0
        state.gap *= 2.0


def _describe(options: CostAwareOptions, site: Site) -> SchedulerFacts:
    return SchedulerFacts(confidences=options.confidences, costs=True)


def _build(options: CostAwareOptions, site: Site) -> CostAware:
    drafter = site.drafter
    curves = site.costs if site.costs is not None else assumed(drafter)
    return CostAware(
        options=options,
        costs=costs(curves),
        confident=options.confidences and drafter is not None and drafter.confidence,
        measured=site.costs is not None,
    )


@hookimpl
def sparkwright_register_schedulers() -> list[Provider]:
    return [
        Provider(
            kind="scheduler",
            name="cost_aware",
            summary="drafts as deep as pays by measured costs, and not at all when plain decoding is faster",
            build=_build,
            describe=_describe,
            options=CostAwareOptions,
        )
    ]
