"""my_plugin keeps a sampler's contract, and gives the distribution it should."""

from __future__ import annotations

import mlx.core as mx
from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import Options, Sampler, sparkwright_register_samplers


@parametrize_with_checks([*sparkwright_register_samplers(), (sparkwright_register_samplers()[0], {"temperature": 0.0})])
def test_conformance(check: Check) -> None:
    check.run()


def test_a_higher_temperature_is_flatter() -> None:
    logits = mx.array([[0.0, 1.0, 2.0]])
    sharp, flat = (
        mx.exp(Sampler(Options(temperature=t)).sparkwright_sampler_distribution(logits, None, True).log_p)
        for t in (0.5, 2.0)
    )
    assert mx.allclose(sharp.sum(), mx.array(1.0)) and mx.allclose(flat.sum(), mx.array(1.0))
    assert mx.all(sharp.max() > flat.max())
