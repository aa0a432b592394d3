"""Figures and computed tables are what their scripts make of the data now."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from tests.docs.blocks import ROOT


@pytest.mark.parametrize("script", ["draw.py", "memory.py"])
def test_what_is_committed_is_what_the_script_writes(script: str) -> None:
    run = subprocess.run(
        [sys.executable, f"docs/figures/{script}", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}; run python docs/figures/{script}"


def test_figures_are_readable_in_light_and_dark() -> None:
    for path in (ROOT / "docs/figures").glob("*.svg"):
        root = ET.parse(path).getroot()
        text = path.read_text(encoding="utf-8")
        assert root.tag.endswith("svg") and "prefers-color-scheme:dark" in text and 'class="back"' in text, path.name
        assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), f"{path.name} asks for something elsewhere"
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for element in root.iter():
            for name, most in (("x", width), ("y", height), ("x2", width), ("cx", width)):
                if name in element.attrib:
                    assert 0 <= float(element.attrib[name]) <= most, f"{path.name}: {element.attrib} is outside"
