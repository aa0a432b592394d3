"""`stochastic` keeps the law behind both deciding schedulers; one that looks back does not, and is refused."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from tests.audit import cells
from tests.audit.faults import Retrospective, two_tokens
from tests.core.engines import GREEDY, SAMPLED, merged, near, table, toy_engine

from sparkwright.core.audit import Subject, audit_law, power_of
from sparkwright.core.audit.trials import Rounds
from sparkwright.core.contracts import NoOptions, Provider, SchedulerFacts
from sparkwright.core.errors import AssemblyError
from sparkwright.core.testing import toys


@pytest.mark.law
@pytest.mark.parametrize("kind", cells.KINDS)
@pytest.mark.parametrize("schedule", ["threshold", "cost_aware"])
def test_stochastic_keeps_the_law_behind_a_deciding_scheduler(schedule: str, kind: str) -> None:
    """300,000 trials, false alarms 1e-4; a joint bias of 1.6 % total variation fails with probability 0.99."""
    result = audit_law(cells.cell({}, "stochastic", kind, schedule, seed=11))
    assert result.passed, result.failed
    assert result.trials == 300_000 and result.smallest_bias < 0.016
    assert 0 < result.accepted < result.submitted < 4 * result.rounds  # blocks were cut, or nothing was tested


def retrospective() -> Provider:
    return Provider(
        kind="scheduler",
        name="retrospective",
        summary="toy: the DSpark paper's counterexample",
        options=NoOptions,
        build=lambda options, site: Retrospective(),
        describe=lambda options, site: SchedulerFacts(confidences=True, anticipates=True),
    )


def run(settings: dict[str, Any], base: dict[str, Any]) -> None:
    drafter = toys.table_drafter(near(table()), name="drafts", block=2, confidences=(0.9, 0.9))
    mine = merged({"scheduler": {"use": "retrospective"}, "drafter": {"use": "drafts"}}, settings)
    with toy_engine(mine, retrospective(), drafter, base=base) as engine:
        assert engine.complete("abc", max_tokens=12).stats.submitted > 0


@pytest.mark.parametrize("verifier", ["stochastic", "block"])
def test_a_scheduler_that_looks_back_is_refused_where_that_changes_the_law(verifier: str) -> None:
    with pytest.raises(AssemblyError, match=f"scheduler 'retrospective' looks at later .* verifier '{verifier}'"):
        run({"verifier": {"use": verifier}}, SAMPLED)


def test_it_is_allowed_where_it_changes_nothing() -> None:
    run({}, SAMPLED)  # coupled: the text is plain decoding's, whatever is submitted
    run({"verifier": {"use": "stochastic"}}, GREEDY)


def share_of_0(subject: Subject) -> float:
    """Of 20,000 first tokens; five standard deviations are 0.013 at 0.85 and 0.016 at 0.7."""
    return float(np.mean(Rounds(subject, (0,), 1).run(np.arange(20_000, dtype=np.uint64)).tokens[:, 0] == 0))


def test_forced_through_it_gives_the_papers_wrong_law_and_fails_the_audit() -> None:
    """p = (.7, .3) comes out as (.85, .15). The audit's power is 1."""
    subject = two_tokens(Retrospective(), anticipates=True)
    assert abs(share_of_0(subject) - 0.85) < 0.013
    assert power_of(subject, 20_000)[1] > 0.999
    assert not audit_law(subject, 20_000).passed
    causal = attrs.evolve(subject, scheduler=cells.scheduler("threshold")[0], anticipates=False)
    assert abs(share_of_0(causal) - 0.7) < 0.016
    assert audit_law(causal, 20_000).passed
