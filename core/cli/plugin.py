"""`sparkwright plugin`: for those who write one: `check` runs the conformance checks, `new` starts a package."""

from __future__ import annotations

import click


@click.group()
def plugin() -> None:
    """Write a plugin: check one against its contract, or start a new package."""


# ---------------------------------------------------------------------------------------- registration of commands
# Each command lives in a module of its own.
from sparkwright.core.cli.plugin_check import check  # noqa: E402
from sparkwright.core.cli.plugin_new import new  # noqa: E402

plugin.add_command(check)
plugin.add_command(new)
