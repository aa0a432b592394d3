"""The law audit of a configuration: its own plugins and options, negotiated as for an engine."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from sparkwright.core.audit import Subject, audit_law, subjects_of
from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import Verdict
from sparkwright.core.errors import AssemblyError, ConfigError, PluginError
from sparkwright.core.hookspecs import hookimpl


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


class Faulty:
    """Passes everything on to a plugin, but for one method of it."""

    leading_axes = True

    def __init__(self, plugin: object, method: str, instead: Any) -> None:
        for name in dir(type(plugin)):
            if name.startswith("sparkwright_"):
                setattr(self, name, hookimpl(instead) if name == method else getattr(plugin, name))


def with_fault(subject: Subject, method: str, instead: Any) -> Subject:
    kind = method.split("_")[1]
    changes: dict[str, Any] = {kind: Faulty(getattr(subject, kind), method, instead)}
    return attrs.evolve(subject, **changes)


def oops(*args: Any, **kwargs: Any) -> Any:
    raise ValueError("oops")


@pytest.mark.parametrize(
    "method",
    [
        "sparkwright_sampler_start", "sparkwright_sampler_advance", "sparkwright_sampler_rows",
        "sparkwright_sampler_distribution", "sparkwright_verifier_verify", "sparkwright_scheduler_start",
        "sparkwright_scheduler_plan", "sparkwright_scheduler_learn",
    ],
)  # fmt: skip
def test_a_plugin_that_raises_is_named_as_the_engine_names_it(method: str) -> None:
    (subject,) = subjects_of(config(), ["dense"])
    kind = method.split("_")[1]
    names = {"sampler": "chain", "verifier": "stochastic", "scheduler": "fixed"}
    with pytest.raises(PluginError) as caught:
        audit_law(with_fault(subject, method, oops), 100)
    assert str(caught.value) == f"{kind} plugin '{names[kind]}' raised in {method}: ValueError: oops"
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("method", "instead", "said"),
    [
        ("sparkwright_sampler_distribution", lambda: None, "sampler plugin 'chain' returned NoneType, expected a Dist"),
        ("sparkwright_verifier_verify", lambda: 3, "verifier plugin 'stochastic' returned int, expected a Verdict"),
        ("sparkwright_scheduler_plan", lambda: 2.5, "scheduler plugin 'fixed' planned 2.5, expected 0..4"),
        (
            "sparkwright_verifier_verify",
            lambda p: Verdict(p.flags),
            r"'stochastic' gave a verdict of shape \(100, 5\), expected \(100, 7\); it says leading_axes = True",
        ),
    ],
)
def test_an_answer_of_another_kind_or_shape_is_named_too(method: str, instead: Any, said: str) -> None:
    (subject,) = subjects_of(config(), ["dense"])
    with pytest.raises(PluginError, match=said):
        audit_law(with_fault(subject, method, instead), 100)
