"""The command line: every command, and what happens when one fails."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidelock import __version__
from tidelock.cli import (
    backfill,
    batches,
    checks,
    connect,
    copies,
    files,
    fold,
    keys,
    meters,
    periods,
    salts,
    serve,
    tables,
    tail,
    terminal,
    triggers,
    usage,
)
from tidelock.errors import TidelockError

_BROKEN_PIPE = 128 + signal.SIGPIPE


def _flags_without_values(command: Any, ctx: typer.Context) -> None:
    """Hide `<bool>` in help texts, here and in subcommands: `--json <bool>` reads as if it took a value."""
    for parameter in [*command.params, command.get_help_option(ctx)]:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _flags_without_values(below, ctx)


class Commands(TyperGroup):
    """Expected failures become one message and an exit code; a traceback means a bug in Tidelock."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]  # its own copy of the class
        _flags_without_values(self, ctx)
        return super().get_params(ctx)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # its own copy of the class
        try:
            return super().invoke(ctx)
        except TidelockError as error:
            terminal.fail("\n".join(filter(None, [error.message, error.detail])))
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # The reader of the pipe has closed it. Flushing the buffer at exit must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_BROKEN_PIPE) from None


app = typer.Typer(
    name="tidelock",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One ordered ledger for events that are retried, late and out of order.",
    epilog="Exit codes: 0 done, 1 a check found a difference, 2 wrong use or settings, 3 something is unreachable.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        terminal.show(f"tidelock {__version__}")
        raise typer.Exit()


@app.callback()
def tidelock(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Does nothing itself: its options are handled before the command is looked up."""


# The help shows its panels in this order: run, events, tables, operations.
for commands in (serve, files, batches, backfill, usage, tables, periods, fold, copies, tail, checks):
    app.add_typer(commands.app)
app.add_typer(connect.app, name="connect", rich_help_panel="Events")
app.add_typer(meters.app, name="meters", rich_help_panel="Tables")
app.add_typer(triggers.app, name="triggers", rich_help_panel="Tables")
app.add_typer(keys.app, name="keys", rich_help_panel="Operations")
app.add_typer(salts.app, name="salts", rich_help_panel="Operations")
app.add_typer(copies.dev, name="dev", rich_help_panel="Operations")


def _terminate(number: int, _: FrameType | None) -> None:
    """Exit by an exception, so that everything opened is closed: an embedded server we started, a half-written file."""
    raise SystemExit(128 + number)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    app()


if __name__ == "__main__":
    main()
