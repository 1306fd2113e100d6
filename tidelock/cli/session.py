"""A command's session: the ledger it works on, the signals that stop it, and the progress it reports."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rich.markup import escape

from tidelock.cli import terminal
from tidelock.settings import Settings

if TYPE_CHECKING:
    # Only when a command needs them: help must not wait for a database driver.
    from psycopg import AsyncConnection

    from tidelock.ledger.opening import Ledger
    from tidelock.postgres.database import Database
    from tidelock.views.catalog import TableCatalog

Answer = TypeVar("Answer")

_STDIN = 0
_LAST_S = 10.0


def made_ledger(settings: Settings) -> AbstractContextManager[Database]:
    """The database; a ledger is created if there is none."""
    from tidelock.ledger import opening

    return opening.made_ledger(settings)


def found_ledger(settings: Settings) -> AbstractContextManager[Database]:
    """The database of an existing ledger."""
    from tidelock.ledger import opening

    return opening.found_ledger(settings)


@asynccontextmanager
async def recording_ledger(settings: Settings) -> AsyncIterator[Ledger]:
    """A ledger that records any stream. On exit the anchor file covers everything that was recorded."""
    from tidelock.ledger.anchor import Anchor
    from tidelock.ledger.opening import open_ledger

    async with open_ledger(settings, streams_open=True) as ledger:
        yield ledger
        if ledger.database.embedded or settings.anchor is not None:
            await Anchor(ledger.database, settings.anchor_path, settings.anchor_interval).close()


async def read_catalog(database: Database, settings: Settings, name: str) -> TableCatalog:
    """The catalog of the tables, as the fold last wrote it; `name` is the connection's."""
    from tidelock.views.catalog import CatalogReader

    async with await database.connect(name=name) as connection:
        return await CatalogReader(settings.definitions).read(connection)


def asked(database: Database, name: str, question: Callable[[AsyncConnection[Any]], Awaitable[Answer]]) -> Answer:
    """The answer to a query, over a connection of its own."""

    async def ask() -> Answer:
        async with await database.connect(name=name) as connection:
            return await question(connection)

    return asyncio.run(ask())


def stop_on_signals() -> threading.Event:
    """An event set by Ctrl-C or SIGTERM; a second signal exits at once."""
    stop = threading.Event()

    def stopping(number: int, _: object) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopping)
    return stop


def set_on_signals(stop: asyncio.Event) -> list[int]:
    """Let a signal stop the event loop's work after what is being recorded now; the exit code is put into the list."""
    exit_code = [0]
    loop = asyncio.get_running_loop()

    def stopping(number: signal.Signals) -> None:
        exit_code[0] = 128 + number
        stop.set()
        # A second one exits at once.
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping, number)
    return exit_code


def stop_with_parent(stop: threading.Event) -> None:
    """Set `stop` when our standard input ends, for the parent has closed it or is gone; end in any case soon after."""
    threading.Thread(target=_end_with_parent, args=(stop,), daemon=True).start()


def _end_with_parent(stop: threading.Event) -> None:
    # Not through sys.stdin, whose lock this thread would still hold when the process ends by itself: that is an abort.
    while os.read(_STDIN, 4096):
        pass
    stop.set()
    threading.Event().wait(_LAST_S)
    os._exit(1)


def log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )


def teller(what: str, json: bool) -> Callable[[str], None]:
    """Reports what a command is doing, to people or to programs."""

    def tell(text: str) -> None:
        if json:
            tell_programs(what, text=text)
        else:
            terminal.say(f"[bold]{what}[/]  {escape(text)}")

    return tell


def tell_programs(event: str, **facts: object) -> None:
    try:
        terminal.write_json({"event": event, **facts})
    except BrokenPipeError:
        # The reader is gone, which must not stop a server. Flushing the buffer at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
