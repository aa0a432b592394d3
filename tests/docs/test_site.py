"""The documentation builds without a warning and asks nobody else's server for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT

TAGS = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
STYLES = re.compile(r"(?:@import|url\()\s*[\"']?(https?://[^\"')]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages; whatever sphinx warns about is an error."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["-d", str(tmp_path_factory.mktemp("doctrees")), "docs", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.kit
def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").glob("**/*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.glob("**/*.html")}
    assert pages and pages <= built, pages - built


@pytest.mark.kit
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    found = []
    for path in site.glob("**/*.html"):
        found += [f"{path.name}: {where}" for where in TAGS.findall(path.read_text(encoding="utf-8"))]
    assert found
    outside = [where for where in found if "://" in where or ": //" in where]
    for path in site.glob("_static/**/*.css"):
        outside += [f"{path.name}: {where}" for where in STYLES.findall(path.read_text(encoding="utf-8"))]
    assert not outside


@pytest.mark.kit
def test_every_link_within_the_site_has_its_target(site: Path) -> None:
    ids = {
        path: set(re.findall(r'\bid="([^"]+)"', path.read_text(encoding="utf-8"))) for path in site.glob("**/*.html")
    }
    broken = []
    for path in ids:
        for link in re.findall(r'<a [^>]*href="([^"]+)"', path.read_text(encoding="utf-8")):
            if "://" in link or link.startswith("mailto:"):
                continue
            where, _, anchor = link.partition("#")
            target = (path.parent / where).resolve() if where else path
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken
