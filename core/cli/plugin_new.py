"""`sparkwright plugin new`: start a plugin package."""

from __future__ import annotations

from pathlib import Path

import click

from sparkwright.core import scaffold
from sparkwright.core.cli.shared import stderr, stdout
from sparkwright.core.plugins import discover


@click.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(list(scaffold.KINDS)), required=True, help="What it is a plugin for.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The package's folder, which must be new or empty; ./sparkwright-NAME by default.",
)
def new(name: str, kind: str, out: Path | None) -> None:
    """Start a plugin package called NAME: a module, its entry point, tests that run the conformance checks, a README.

    It works as it is: install it, run its tests, and then make it yours.
    """
    made = scaffold.new_package(name, kind, out)
    stdout.print(f"made {made.folder}:", markup=False, soft_wrap=True)
    for file in made.files:
        stdout.print(f"  {file}", markup=False, soft_wrap=True)
    stdout.print("next:", markup=False)
    for line in (f"cd {made.folder}", "pip install -e '.[test]'", "pytest", made.command):
        stdout.print(f"  {line}", markup=False, soft_wrap=True)
    owner = scaffold.taken_by(name, kind, discover())
    if owner is not None:
        said = f"note: {owner}; two of one name exclude each other: choose another name, or uninstall that one"
        stderr.print(said, markup=False, soft_wrap=True)
