"""The pages of README.md and docs/ from the wheel, in an environment that knows no checkout.

The same blocks as in test_blocks.py, run by the same function with another environment's commands: that of a user who
installed the wheel (built from the sdist) with `pip`. A block that is about the checkout itself cannot be run so: it is
not run here (its comment says so), and its page tells the reader where to stand. Needs an index, as a user's pip does.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import attrs
import pytest
from tests.docs.blocks import RUN, Block, blocks, pages
from tests.docs.conftest import PAGES_SETTINGS
from tests.docs.test_blocks import PAGES, run, run_page
from tests.scaffold.published import ROOT, Built, build, clean, install

# What only a checkout has: its own installation, scripts, tests, training.
CHECKOUT = re.compile(
    r"install (-e )?'\.|^(pytest|cd training|sphinx-build)|docs/benchmarks/|training/|corpus\.py", re.M
)
EXECUTED = [page for page in PAGES if any(b.note not in ("ci", "not run") for b in blocks(page))]
PROBE = """
import json, sys, sysconfig
import sparkwright, sparkwright.core, sparkwright.plugins
print(json.dumps([sysconfig.get_path("purelib"), sparkwright.__file__, list(sparkwright.core.__path__), sys.path]))
"""


def of_a_checkout() -> list[Block]:
    """The blocks that are told to somebody in a checkout."""
    found = [block for page in pages() for block in blocks(page) if block.language in RUN]
    return [block for block in found if block.note in ("ci", "not run") and CHECKOUT.search(block.text)]


def test_who_must_be_in_a_checkout_is_told_so_before_the_block() -> None:
    listed = of_a_checkout()
    print(*listed, sep="\n")
    assert len(listed) >= 10
    for block in listed:
        above = (ROOT / block.page).read_text(encoding="utf-8").splitlines()[: block.line + 8]
        text = re.sub(r"<!--.*?-->", "", "\n".join(above))
        assert re.search(r"\b(clone|checkout)\b", text), f"{block}: the page does not say that this needs a checkout"


@attrs.frozen
class Installed:
    built: Built
    folder: Path
    environment: dict[str, str]

    def stands_alone(self, here: Path) -> None:
        """The package that commands of this environment find, from this folder, is that of its own site-packages."""
        done = subprocess.run(
            [self.folder / "bin/python", "-c", PROBE], cwd=here, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        library, package, core, path = json.loads(done.stdout)
        assert library.startswith(str(self.folder))
        assert [package, *core] == [f"{library}/sparkwright/__init__.py", f"{library}/sparkwright/core"]
        assert not [place for place in path if place.startswith(str(ROOT))]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, and beside it what the pages' own packages ask for: pytest, and what builds them without an index."""
    built = build(tmp_path_factory.mktemp("built"))
    folder = tmp_path_factory.mktemp("installed")
    install(built, folder, "editables", "hatchling", "mypy", "pytest", "ruff")
    variables = clean()
    variables |= {
        "PATH": f"{folder}/bin:{variables['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        **PAGES_SETTINGS,
    }
    assert not [key for key, value in variables.items() if str(ROOT) in value]
    return Installed(built, folder, variables)


@pytest.mark.slow
def test_a_package_of_the_checkout_would_be_noticed(installed: Installed, tmp_path: Path) -> None:
    installed.stands_alone(tmp_path)
    led_back = attrs.evolve(installed, environment=installed.environment | {"PYTHONPATH": str(ROOT / "src")})
    with pytest.raises(AssertionError):
        led_back.stands_alone(tmp_path)
    with pytest.raises(AssertionError, match="left with"):  # the tests' own modules are not there either
        run(Block("none.md", 1, "python", "import tests.docs\n"), tmp_path, installed.environment)


@pytest.mark.slow
@pytest.mark.parametrize("page", EXECUTED)
def test_a_page_does_what_it_says_where_only_the_wheel_is(page: str, tmp_path: Path, installed: Installed) -> None:
    run_page(page, tmp_path, installed.environment, installed.built.source)
    installed.stands_alone(tmp_path)
    done = [block for block in blocks(page) if block.note not in ("ci", "not run")]
    print(f"{page}: {len(done)} of {len(list(blocks(page)))} blocks")
