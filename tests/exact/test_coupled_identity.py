"""Coupled text is plain decoding's text for the same seed at temperatures above 0, whatever drafts and schedules.

Every drafter x scheduler that fit together, on a tiny DeepSeek-V4 and a tiny dense model: at each of T = 0.5, 1, 1.5,
20 seeds of 128 tokens are dealt out to the pairs in turn (the dense one: 8 seeds, a third of the pairs at each
temperature). All seeds for all pairs: docs/benchmarks/coupled_product.py.
With MLX's bundled BLAS rows are bit-equal for any number of rows (conftest sets SPARKWRIGHT_OPENBLAS=0), so equality is
exact here, not up to ties.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.exact import coupled
from tests.exact.coupled import SCHEDULERS, SEEDS, TEMPERATURES, World

pytestmark = pytest.mark.exact


@pytest.fixture(scope="module", params=["tiny V4", "tiny Qwen3"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config"), "this test needs MLX's bundled BLAS"
    make = {"tiny V4": coupled.tiny_v4, "tiny Qwen3": coupled.tiny_qwen3}[request.param]
    return make(tmp_path_factory.mktemp("coupled"))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_coupled_text_is_plain_text(world: World, temperature: float) -> None:
    count = SEEDS if world.name == "tiny V4" else 8
    plain = coupled.plainly(world, temperature, count)
    assert len(set(plain)) == count, "texts must differ from seed to seed"
    number_of = TEMPERATURES.index(temperature)
    turn = 7 * number_of  # other seeds for a pair at another temperature
    totals = np.zeros(2, dtype=int)
    for number, (drafter, scheduler) in enumerate(world.pairs):
        if world.name != "tiny V4" and number % len(TEMPERATURES) != number_of:
            continue
        seeds = range((number + turn) % count, count, len(world.pairs))
        settings = {"drafter": world.drafters[drafter], "scheduler": SCHEDULERS[scheduler]}
        got = coupled.texts(world, temperature, settings, seeds, plain)
        assert got.tokens == [plain[seed] for seed in seeds], f"{drafter} with {scheduler} changed a text"
        totals += got.submitted, got.accepted
    assert totals[0] > 1000 and totals[1] > 60, f"{totals} drafts submitted and accepted: too few to prove anything"


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_coupled_text_of_the_bundled_model_is_plain_text(temperature: float, tmp_path: Path) -> None:
    """A trained DeepSeek-V4 with its own drafter."""
    world = coupled.demo(tmp_path)
    plain = coupled.plainly(world, temperature, 2, tokens=40)
    accepted = 0
    for drafter, scheduler in (("dspark", "threshold"), ("knowing", "fixed")):
        settings = {"drafter": world.drafters[drafter], "scheduler": SCHEDULERS[scheduler]}
        got = coupled.texts(world, temperature, settings, range(2), plain, tokens=40)
        assert got.tokens == plain, f"{drafter} with {scheduler} changed a text"
        accepted += got.accepted
    assert accepted > 30


CHILD = """
from pathlib import Path
from tests.exact import coupled
world = coupled.tiny_v4(Path("."))
more = {"tokens": 64, "row_exact": %s}
plain = coupled.plainly(world, 1.0, 12, **more)
settings = {"drafter": world.drafters["knowing"], "scheduler": coupled.SCHEDULERS["fixed"]}
print(sum(a == b for a, b in zip(coupled.texts(world, 1.0, settings, range(12), plain, **more).tokens, plain)))
"""


def test_with_openblas_row_exact_makes_the_promise_of_identity_true(tmp_path: Path) -> None:
    """In a process of its own: OpenBLAS rounds one row and several differently, `engine.row_exact` mends that."""
    environ = {name: value for name, value in os.environ.items() if name != "SPARKWRIGHT_OPENBLAS"}
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n" + CHILD % True]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "12"
