"""A process that closed its engines ends in peace: MLX aborts it if a thread that touched MLX has ended before."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from sparkwright import assemble, load_config
from sparkwright.core.plugins import discover
from sparkwright.core.testing.toys import markov_target, plain_sampler

catalogue = discover().with_providers(markov_target([[0.0, 1.0], [1.0, 0.0]]), plain_sampler())
config = load_config(
    {"target": {"use": "markov"}, "sampler": {"use": "plain"}, "scheduler": {"use": "fixed"}}, catalogue=catalogue
)
for _ in range(3):
    with assemble(config) as one, assemble(config) as two:
        print(one.complete([0], max_tokens=3).finish, two.complete([0], max_tokens=3).finish)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_process_exits_cleanly_after_engines_are_closed(attempt: int) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "max_tokens max_tokens\n" * 3
