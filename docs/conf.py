"""Builds these pages: `sphinx-build -W --keep-going -b html docs OUT`. Needs no network, and its pages need none.

The reference is written by docs/generate.py and committed; nothing is imported from the package while pages are built.
"""

from __future__ import annotations

project = "sparkwright"
author = "the sparkwright authors"
copyright = f"2026, {author}"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build", "**/.*", "**/__pycache__"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = "sparkwright"
html_copy_source = False
html_theme_options = {
    # System fonts: a page asks nobody else's server for anything.
    "light_css_variables": {
        "font-stack": "system-ui, sans-serif",
        "font-stack--monospace": "ui-monospace, monospace",
    },
}
