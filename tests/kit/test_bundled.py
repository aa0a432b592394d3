"""Every bundled plugin that can be built here keeps its contract: the same checks that third parties run.

Those that need a model get the tiny random DeepSeek-V4 of the tests. The statistical checks are in the tier `kit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.dspark.folders import write_folder
from tests.dspark.tiny import SPARK, spark_weights
from tests.kernels.cases import Case, problem

from sparkwright.core.contracts import OpSpec, Provider
from sparkwright.core.plugins import discover
from sparkwright.core.testing import Check, OpCase, checks_for
from sparkwright.core.testing.isolated import look, module_of
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.kernels.fused import launcher
from sparkwright.plugins.kernels.fused.launcher import Launcher

BUNDLED = [i.provider for i in discover().installed if i.distribution == "sparkwright"]
NEEDS_A_MODEL = {("drafter", "dspark"), ("target", "deepseek_v4"), ("target", "mlx_lm")}
TOYS = [p for p in BUNDLED if (p.kind, p.name) not in NEEDS_A_MODEL]


def options_of(provider: Provider, folder: Path) -> Mapping[str, Any]:
    return {"path": str(folder / "trace.jsonl")} if provider.name == "trace" else {}


def every(slow: bool) -> Iterator[Any]:
    for provider in TOYS:
        for check in checks_for(provider):
            if check.slow == slow:
                yield pytest.param(provider, check.name, id=f"{provider.kind}-{check.id}")


@pytest.fixture(scope="module", autouse=True)
def _one_look_at_all_modules() -> None:
    """A fresh process for every plugin costs seconds; one for all of them sees as much."""
    look(filter(None, map(module_of, BUNDLED)))


def keeps(provider: Provider, name: str, folder: Path) -> None:
    check = next(c for c in checks_for(provider, options=options_of(provider, folder)) if c.name == name)
    outcome = check.outcome()
    assert outcome.status in ("passed", "skipped"), outcome.message


@pytest.mark.parametrize(("provider", "name"), list(every(slow=False)))
def test_a_bundled_plugin_keeps_its_contract(provider: Provider, name: str, tmp_path: Path) -> None:
    keeps(provider, name, tmp_path)


@pytest.mark.kit
@pytest.mark.parametrize(("provider", "name"), list(every(slow=True)))
def test_a_bundled_plugin_keeps_its_law(provider: Provider, name: str, tmp_path: Path) -> None:
    keeps(provider, name, tmp_path)


def test_every_bundled_plugin_is_checked_here_or_in_the_tier() -> None:
    assert {(p.kind, p.name) for p in BUNDLED} >= NEEDS_A_MODEL and len(TOYS) >= 14


# ------------------------------------------------------------------------------------- those that need a model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny-spark"), SPARK, spark_weights(SPARK, 1))


def named(kind: str, name: str) -> Provider:
    return next(p for p in BUNDLED if (p.kind, p.name) == (kind, name))


def failures(checks: Iterator[Check]) -> list[str]:
    ended = [(check, check.outcome()) for check in checks]
    return [outcome.message for _, outcome in ended if outcome.bad]


@pytest.mark.kit
@pytest.mark.parametrize("proposal", ["dense", pytest.param("point", marks=pytest.mark.slow)])
def test_dspark_keeps_its_contract_on_the_tiny_v4(tiny: Path, proposal: str) -> None:
    target = {"target": {"use": "deepseek_v4", "model": str(tiny)}}
    provider = named("drafter", "dspark")
    assert failures(checks_for(provider, options={"proposal": proposal}, config=target)) == []


@pytest.mark.kit
@pytest.mark.parametrize(
    ("op", "per_row"),
    [(ops.HYPER_EXPAND, (0, 1, 2, 3)), (ops.SMALL_ROWS_MATMUL, (0,))],
    ids=lambda op: getattr(op, "name", ""),
)
def test_the_metal_text_of_fused_kernels_keeps_the_contract(
    op: OpSpec, per_row: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "here", lambda device: Launcher("metal"))

    def arguments(rows: int, seed: int) -> tuple[Any, ...]:
        return problem(Case(op.name, "float32", "float32", rows, "small")).arguments

    case = OpCase(op, arguments, format="float32", widths=(4, 64), per_row=per_row)
    checks = checks_for(named("kernels", "fused"), options={"metal": True}, cases=[case])
    outcome = next(c for c in checks if c.name == "Metal source").outcome()
    assert outcome.status == "passed", outcome


@pytest.mark.kit
def test_the_v4_target_keeps_its_contract(tiny: Path) -> None:
    assert failures(checks_for(named("target", "deepseek_v4"), config={"target": {"model": str(tiny)}})) == []
