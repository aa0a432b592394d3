"""Plugin packages made for a test: one of each kind, named after it."""

from __future__ import annotations

from pathlib import Path

from sparkwright.core.scaffold import KINDS, Package, new_package


def one_of_each(folder: Path, prefix: str = "made_") -> dict[str, Package]:
    """By kind: the package `<prefix><kind>` in a folder of that name."""
    return {kind: new_package(f"{prefix}{kind}", kind, folder / f"{prefix}{kind}") for kind in KINDS}
