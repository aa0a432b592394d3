"""What a round costs, in units of one plain decode. Knows nothing of acceptance.

Measured curves come from `Site.costs`. Without them a pessimistic curve is assumed: the bytes that a bandwidth-bound
machine reads for DeepSeek-V4-Flash when neighbouring tokens share no experts. Real curves lie below it, so an engine
that was not calibrated drafts less than it could, and never more than it should.
"""

from __future__ import annotations

import math

import attrs

from sparkwright.core.contracts import WIDEST_VERIFY, CostCurves, DrafterFacts
from sparkwright.core.errors import AssemblyError

FLASH_VERIFY = (1.00, 1.30, 1.59, 1.88, 2.16, 2.43, 2.70, 2.96)
"""Bytes of a verify of 1..8 rows over those of one row: V4-Flash, uniform routing, batch of one."""
FLASH_DRAFT = 0.27
"""Bytes of a DSpark block of 5 over those of one row of its target."""
FREE_DRAFT = 0.02
"""A drafter without a model (it reads no taps) costs host time only."""


@attrs.frozen
class Costs:
    """drafted[d]: a round that drafts a block and submits d of it, over a plain decode; a plain decode is 1.

    resume: what the first plain decode after such a round costs more than one in a row of them, in which each begins
    while the token before it is still being drawn.
    """

    drafted: tuple[float, ...]
    resume: float = 0.0

    @property
    def depth(self) -> int:
        return len(self.drafted) - 1

    def hopeless(self) -> bool:
        """Whether drafting could not pay even if every draft were accepted."""
        return all(1 + d <= cost for d, cost in enumerate(self.drafted))


def assumed(drafter: DrafterFacts | None) -> CostCurves:
    """The curves of an engine that was not calibrated."""
    free = drafter is not None and not drafter.taps and drafter.proposal == "point"
    return CostCurves(plain=1.0, verify=FLASH_VERIFY, draft=FREE_DRAFT if free else FLASH_DRAFT)


def costs(curves: CostCurves) -> Costs:
    """Seconds as units of a plain decode. AssemblyError if a curve is not usable.

    A verify that was measured as cheaper than a plain decode is measured noise: it counts as one, or drafting would pay
    without a single draft accepted. Otherwise a curve may fall: where matrices are cut in tiles of 4 rows, 4 rows are
    cheaper than 3 (measured with OpenBLAS on SmolLM2, run after run), and that is a depth worth choosing.
    """
    values = {"plain": (curves.plain,), "verify": curves.verify, "draft": (curves.draft,)}
    for name, seconds in values.items():
        least = 0.0 if name == "draft" else math.ulp(0.0)
        if not seconds or not all(math.isfinite(s) and s >= least for s in seconds):
            raise AssemblyError(
                f"scheduler 'cost_aware' was given the cost curve {name} = {list(seconds)}: expected finite positive "
                "seconds; measure again with `sparkwright calibrate`"
            )
    rows = curves.verify[:WIDEST_VERIFY]
    drafted = tuple((curves.draft + max(verify, curves.plain)) / curves.plain for verify in rows)
    return Costs(drafted, resume=max(0.0, rows[0] / curves.plain - 1.0))
