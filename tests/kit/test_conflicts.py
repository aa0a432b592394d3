"""Four plugins that cannot be used, beside one that can: each is named in one line, and the rest works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCHEDULER = '''
"""A scheduler; what is wrong with it is said at the end."""
from sparkwright.core.contracts import HOOK_API, Provider, SchedulerFacts
from sparkwright.core.hookspecs import hookimpl


class One:
    @hookimpl
    def sparkwright_scheduler_start(self):
        return None

    @hookimpl
    def sparkwright_scheduler_plan(self, limit):
        return min(1, limit)

    @hookimpl
    def sparkwright_scheduler_learn(self):
        return None


def make(name, api=HOOK_API, build=lambda options, site: One()):
    return Provider(kind="scheduler", name=name, summary="one draft a round", build=build, hook_api=api,
                    describe=lambda options, site: SchedulerFacts())


@hookimpl
def sparkwright_register_schedulers():
    return [PROVIDER]


'''
TARGET = """
import numpy as np
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import toys


@hookimpl
def sparkwright_register_targets():
    table = np.random.default_rng(4).normal(size=(26, 26)) * 2
    return [toys.markov_target(table, name="acme_toy")]
"""
PATCH = """
import mlx.core as mx
_right = mx.random.split
mx.random.split = lambda key, num=2, stream=None: _right(mx.random.key(5), num)
"""
PACKAGES = {  # distribution: (entry point, module, source)
    "acme-one": ("same", "acme_one", SCHEDULER + "PROVIDER = make('same')\n"),
    "acme-two": ("same", "acme_two", SCHEDULER + "PROVIDER = make('same')\n"),
    "acme-new": ("newer", "acme_new", SCHEDULER + "PROVIDER = make('newer', HOOK_API + 1)\n"),
    "acme-broken": ("broken", "acme_broken", "import nothing_of_this_name\n"),
    "acme-patch": ("patches", "acme_patch", PATCH + SCHEDULER + "PROVIDER = make('patches')\n"),
    "acme-good": ("good", "acme_good", SCHEDULER + "PROVIDER = make('good')\n"),
    "acme-toy": ("toy", "acme_toy", TARGET),
}
GOOD = ("acme-good", "acme-toy")


def site(root: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        entry, module, source = PACKAGES[name]
        info = root / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[sparkwright.plugins]\n{entry} = {module}\n")
        (root / f"{module}.py").write_text(source)
    return root


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site(tmp_path_factory.mktemp("crowded"), tuple(PACKAGES))


def run(packages: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    # The checkout is no package here: its folders `core` and `plugins` must not be found under bare names.
    environ = {**os.environ, "PYTHONPATH": str(packages), "SPARKWRIGHT_OPENBLAS": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "sparkwright", *arguments],
        capture_output=True, text=True, timeout=100, check=False, cwd=packages, env=environ,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def listed(packages: Path) -> tuple[dict[str, str], set[tuple[str, str]]]:
    out, _ = run(packages, "plugins", "list", "--json")
    data: Any = json.loads(out)
    unusable: dict[str, str] = {}
    for one in data["unusable"]:
        assert "\n" not in one["reason"]
        unusable[f"{one['distribution']} {one['why']}"] = one["reason"]
    return unusable, {(i["kind"], i["name"]) for i in data["installed"]}


def test_each_is_named_in_one_line_and_the_others_are_there(crowded: Path) -> None:
    unusable, installed = listed(crowded)
    assert set(unusable) == {
        "acme-one conflict", "acme-two conflict", "acme-new broken", "acme-broken broken", "acme-patch broken",
    }  # fmt: skip
    assert unusable["acme-one conflict"] == unusable["acme-two conflict"]
    assert "'same' is taken by acme-one 1.0 and acme-two 1.0; disable or uninstall one" in unusable["acme-one conflict"]
    assert "hook API 2, this sparkwright has 1; upgrade sparkwright" in unusable["acme-new broken"]
    assert unusable["acme-broken broken"] == "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert "replaces mlx.core.random.split" in unusable["acme-patch broken"]
    assert {("scheduler", "good"), ("target", "acme_toy"), ("scheduler", "fixed"), ("verifier", "coupled")} <= installed
    assert not {("scheduler", name) for name in ("same", "newer", "patches")} & installed


def test_the_list_for_people_says_the_same(crowded: Path) -> None:
    out, _ = run(crowded, "plugins", "list")
    said = " ".join(out.split())
    assert "conflict: same (acme-one 1.0)" in said and "conflict: same (acme-two 1.0)" in said
    for name in ("newer (acme-new 1.0)", "broken (acme-broken 1.0)", "patches (acme-patch 1.0)"):
        assert f"broken: {name}" in said


ENGINE = (
    "generate", "--set", "target.use=acme_toy", "--set", "drafter.use=lookup", "--set", "scheduler.use=good", "--set",
    "verifier.use=coupled", "--set", "sampler.chain.temperature=1.0", "--set", "engine.costs=none", "--seed", "3",
    "--max-tokens", "24", "abcabcabc",
)  # fmt: skip


@pytest.mark.kit
def test_an_engine_beside_them_says_what_it_says_without_them(crowded: Path, tmp_path: Path) -> None:
    alone, _ = run(site(tmp_path / "alone", GOOD), *ENGINE)
    beside, _ = run(crowded, *ENGINE)
    assert beside == alone and len(alone.strip()) > 10


@pytest.mark.kit
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("same", "taken by acme-one 1.0 and acme-two 1.0"),
        ("newer", "hook API 2"),
        ("patches", "replaces mlx.core.random.split"),
    ],
)
def test_asking_for_one_of_them_says_why_it_is_not_there(crowded: Path, name: str, says: str) -> None:
    _, err = run(crowded, *ENGINE, "--set", f"scheduler.use={name}", code=2)
    assert "Traceback" not in err and f"no scheduler plugin is named '{name}'" in err and says in err


def test_strict_plugins_names_all_of_them(crowded: Path) -> None:
    _, err = run(crowded, "--strict-plugins", "plugins", "list", code=3)
    assert all(name in err for name in ("acme-one", "acme-two", "acme-new", "acme-broken", "acme-patch"))


@pytest.mark.kit
def test_a_plugin_that_patches_while_it_is_built_is_refused_by_name(tmp_path: Path) -> None:
    source = SCHEDULER + (
        "def build(options, site):\n"
        "    import mlx.core as mx\n"
        "    mx.random.uniform = lambda *a, **k: None\n"
        "    return One()\n\n\n"
        "PROVIDER = make('good', build=build)\n"
    )
    packages = site(tmp_path / "site", GOOD)
    (packages / "acme_good.py").write_text(source)
    _, err = run(packages, *ENGINE, code=3)
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert "scheduler plugin 'good': its build replaces mlx.core.random.uniform" in line
    assert run(packages, *ENGINE, "--set", "scheduler.use=fixed")[0].strip()


def test_what_was_replaced_is_back_in_place() -> None:
    code = (
        "import sys\n"
        "from sparkwright.core.guard import Watch\n"
        "with Watch() as watch:\n"
        "    import mlx.core as mx\n"
        "    right, mx.random.key = mx.random.key, print\n"
        "assert mx.random.key is right and watch.replaced == ('mlx.core.random.key',), watch.replaced\n"
        "with Watch() as watch:\n"
        "    mx.random.seed(1)\n"
        "assert not watch.replaced and not [f for f in sys.meta_path if isinstance(f, Watch)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
