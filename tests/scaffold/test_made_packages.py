"""One package of each kind as a user would have it: built, installed away from this checkout, tested, type-checked.

No network and no new environment: wheels are built with the hatchling that is here, and installed into a folder that
stands on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
from tests.scaffold.packages import one_of_each

from sparkwright.core.scaffold import KINDS, Package

pytestmark = pytest.mark.kit


@attrs.frozen
class Site:
    """Where the packages' wheels are installed, and the packages."""

    folder: Path
    site: Path
    made: dict[str, Package]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """With the installed packages, from a folder that is no checkout of anything."""
        inherited = {k: v for k, v in os.environ.items() if k != "SPARKWRIGHT_PLUGINS"}
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, capture_output=True, text=True, check=False, timeout=300,
            env={**inherited, "PYTHONPATH": str(self.site), **environment},
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("made")
    made = one_of_each(folder)
    where = Site(folder, folder / "site", made)
    folders = [str(package.folder) for package in made.values()]
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    built = where.run("-m", "pip", "wheel", *quiet, "--no-build-isolation", "-w", "wheels", *folders)
    assert built.returncode == 0, built.stderr
    wheels = sorted(str(wheel) for wheel in (folder / "wheels").iterdir())
    assert len(wheels) == len(KINDS)
    installed = where.run("-m", "pip", "install", *quiet, "--target", str(where.site), *wheels)
    assert installed.returncode == 0, installed.stderr
    return where


def test_they_are_listed_beside_the_bundled_ones(site: Site) -> None:
    listed = site.run("-m", "sparkwright", "plugins", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    said = json.loads(listed.stdout)
    found = {(item["kind"], item["name"]) for item in said["installed"]}
    assert {(slot, f"made_{kind}") for kind, slot in KINDS.items()} <= found and not said["unusable"]


def test_their_own_tests_pass_on_what_is_installed(site: Site) -> None:
    (site.folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --import-mode=importlib\n")
    tests = [str(package.folder / "tests") for package in site.made.values()]
    done = site.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-6000:]
    tail = done.stdout.splitlines()[-1]
    assert int(tail.split(" passed")[0].split()[-1]) > 7 * 5, tail


def test_their_own_tests_see_a_fault(site: Site) -> None:
    """The generated tests, run from the sources as `pytest` in the package's folder does."""
    package = site.made["scheduler"].folder
    module = package / "src" / "sparkwright_made_scheduler" / "__init__.py"
    right = module.read_text()
    try:
        module.write_text(right.replace("return min(limit, self.options.drafts)", "return limit + 1"))
        done = site.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(package), str(package))
    finally:
        module.write_text(right)
    assert done.returncode == 1 and "failed" in done.stdout.splitlines()[-1], done.stdout[-3000:]


def test_they_are_clean_under_mypy_strict(site: Site) -> None:
    sources = [str(p) for made in site.made.values() for p in (made.folder / "src").iterdir()]
    tests = [str(p) for made in site.made.values() for p in (made.folder / "tests").glob("*.py")]
    path = os.pathsep.join(str(made.folder / "src") for made in site.made.values())
    done = site.run("-m", "mypy", "--strict", "--config-file=", *sources, *tests, MYPYPATH=path, PYTHONPATH="")
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugin_check_finds_them_by_name(site: Site) -> None:
    done = site.run("-m", "sparkwright", "plugin", "check", "made_scheduler")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_in_each_readme_uses_the_plugin(site: Site) -> None:
    def use(made: tuple[str, Package]) -> None:
        kind, package = made
        name, *rest = shlex.split(package.command)
        assert name == "sparkwright" and f"made_{kind}" in package.command
        done = site.run("-m", "sparkwright", *rest)
        assert done.returncode == 0, (package.command, done.stdout, done.stderr)

    with ThreadPoolExecutor(2) as pool:  # they mostly wait for the bundled model
        list(pool.map(use, site.made.items()))
