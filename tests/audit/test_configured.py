"""The law audit of a configuration: its own plugins and options, negotiated as for an engine."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.core.audit import audit_law, subjects_of
from sparkwright.core.config import Config, load_config
from sparkwright.core.errors import AssemblyError, ConfigError, PluginError


def config(**slots: Any) -> Config:
    base: dict[str, Any] = {
        "sampler": {"use": "chain"},
        "verifier": {"use": "stochastic"},
        "scheduler": {"use": "fixed"},
    }
    return load_config(base | slots, environ={})


def test_the_configured_plugins_and_options_are_what_runs() -> None:
    chain = {"use": "chain", "chain": {"temperature": 0.6, "top_k": 3, "presence_penalty": 0.5}}
    made = subjects_of(config(sampler=chain, scheduler={"use": "threshold"}, verifier={"use": "block"}))
    assert [s.name for s in made] == [f"chain x {kind} x threshold x block" for kind in ("dense", "sparse", "point")]
    for subject in made:
        assert subject.sampler.options.top_k == 3 and subject.confidences and subject.promise == "law"  # type: ignore[attr-defined]
        result = audit_law(subject, 5_000)
        assert result.passed and result.submitted > 0


def test_promises_are_those_of_an_engine() -> None:
    (coupled,) = subjects_of(config(verifier={"use": "coupled"}), ["dense"])
    assert (coupled.promise, coupled.noise) == ("identity-up-to-ties", "target")
    (greedy,) = subjects_of(config(sampler={"use": "greedy"}, verifier={"use": "greedy"}), ["point"])
    result = audit_law(greedy, 500)
    assert result.passed and result.identical == 500


def test_what_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(
        AssemblyError, match="verifier 'greedy' is exact only without randomness, sampler 'chain' samples"
    ):
        subjects_of(config(verifier={"use": "greedy"}))
    with pytest.raises(ConfigError, match="logit_bias names token 100"):
        subjects_of(config(sampler={"use": "chain", "chain": {"logit_bias": {"100": 1.0}}}))
    with pytest.raises((PluginError, ConfigError), match="did you mean 'stochastic'"):
        subjects_of(config(verifier={"use": "stochastics"}))
