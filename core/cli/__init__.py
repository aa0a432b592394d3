"""The command line. Thin: commands parse, call the library and print; each is imported only when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from sparkwright.core.errors import SparkwrightError

COMMANDS = {
    "audit": ("audit:audit", "Check the promises of a configuration: law, identity, consistency, rollback, kernels."),
    "bench": ("bench:bench", "Measure rates over kinds of prompts, temperatures and context lengths."),
    "calibrate": ("calibrate:calibrate", "Measure what drafts and verifies cost here, for `cost_aware`."),
    "compare": ("compare:compare", "Compare configurations in paired runs, and give a verdict."),
    "config": ("config:config", "Show what is configured, and where each value comes from."),
    "doctor": ("doctor:doctor", "Say what runs here, what is wrong, and what to do about it."),
    "evidence": ("evidence:evidence", "Measure everything on this machine into one file to send, and show one."),
    "generate": ("generate:generate", "Generate text from a prompt, speculatively."),
    "kernels": ("kernels:kernels", "Show which kernel backend computes each op here, and why."),
    "models": ("models:models", "Inspect and convert checkpoints."),
    "plugin": ("plugin:plugin", "Check a plugin against its contract, or start a new one."),
    "plugins": ("plugins:plugins", "List the installed plugins, and show one."),
    "trace": ("trace:trace", "Read traces that `generate --trace FILE` wrote."),
}


class _ReaderGoneError(Exception):
    """A broken pipe, under a name that click does not turn into exit code 1."""


class LazyGroup(click.Group):
    """Knows every command's name and summary; imports a command's module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"sparkwright.core.cli.{module}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sparkwright", prog_name="sparkwright")
@click.option("--strict-plugins", is_flag=True, help="Fail if any installed plugin is broken or in conflict.")
@click.pass_context
def cli(ctx: click.Context, strict_plugins: bool) -> None:
    """Run large language models on MLX with speculative decoding; every strategy is a plugin."""
    ctx.obj = {"strict_plugins": strict_plugins}


def main() -> None:
    """The console script: runs `cli`; every error a user can cause is one message and an exit code, no traceback."""
    try:
        code = cli.main(prog_name="sparkwright", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, _ReaderGoneError):
        # Whoever read our output has gone (`| head`): nothing is left to say, and flushing at exit would say it loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = 130
        _leave_at_once_if_computing(code)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except SparkwrightError as error:
        click.echo(f"error: {error}", err=True)
        code = error.exit_code
    except Exception as error:
        if os.environ.get("SPARKWRIGHT_DEBUG"):
            raise
        click.echo(
            f"internal error: {type(error).__name__}: {error}\n"
            "This is a fault in sparkwright; SPARKWRIGHT_DEBUG=1 shows where.",
            err=True,
        )
        code = 70
    sys.exit(code if isinstance(code, int) else 0)


def _leave_at_once_if_computing(code: int) -> None:
    """MLX aborts a process whose interpreter ends while a thread computes; so leave without that end."""
    from sparkwright.core.worker import at_work

    if at_work():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
