"""What `calibrate` prints of a fit: positions that too few rounds reached are named, and left alone."""

from __future__ import annotations

import attrs
import pytest

from sparkwright.core.calibrate import LEAST_REACHED, Fit
from sparkwright.core.cli.calibrate import _show
from sparkwright.core.contracts import CostCurves

CURVES = CostCurves(1.0, (1.0,) * 8, 0.3)
FIT = Fit((1.2, 0.9, 1.0), (0.1, 0.1, 0.1), (0.05, 0.05, 0.1), 400, (400, 120, 20), (True, True, False))


def test_positions_that_few_rounds_reached_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    _show(CURVES, {"fitted": True, **attrs.asdict(FIT)})
    assert f"too few rounds reached position 3 (fewer than {LEAST_REACHED}): left at 1" in capsys.readouterr().out
    _show(CURVES, {"fitted": True, **attrs.asdict(attrs.evolve(FIT, enough=(True, True, True)))})
    out = capsys.readouterr().out
    assert "too few" not in out and "120" in out
