"""The target keeps its contract, and speculation on it changes no greedy text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sparkwright import assemble
from sparkwright.core.config import load_config
from sparkwright.core.contracts import NoOptions, Site
from sparkwright.core.errors import ModelError
from sparkwright.core.plugins import discover
from sparkwright.core.testing import Check, parametrize_with_checks
from sparkwright_trigram import build, describe, sparkwright_register_targets


@parametrize_with_checks(sparkwright_register_targets())
def test_conformance(check: Check) -> None:
    check.run()


def test_it_has_learnt_its_text_and_says_how_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "rhyme.txt"
    file.write_text("one, two, buckle my shoe; " * 20)
    p = np.exp(np.array(build(NoOptions(), Site(model=file)).log_p))
    assert abs(p.sum(axis=-1) - 1).max() < 1e-4
    assert chr(p[ord("b"), ord("u")].argmax()) == "c"
    assert p[ord(";"), ord(" "), 0] > 0.02


def test_lookup_drafts_from_its_own_text_and_changes_nothing() -> None:
    catalogue = discover().with_providers(*sparkwright_register_targets())
    texts = {}
    for drafter in ("lookup", "none"):
        settings = {
            "target": {"use": "trigram"}, "drafter": {"use": drafter}, "scheduler": {"use": "fixed"},
            "sampler": {"use": "greedy"}, "verifier": {"use": "greedy"}, "engine": {"row_exact": True},
        }  # fmt: skip
        with assemble(load_config(settings, environ={}, catalogue=catalogue)) as engine:
            texts[drafter] = engine.complete("def sparkwright_", max_tokens=120)
    assert texts["lookup"].text == texts["none"].text and texts["lookup"].stats.accepted > 20
    assert texts["lookup"].promise == "identity"


def test_a_corpus_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read as a text file"):
        describe(NoOptions(), Site(model=tmp_path))
