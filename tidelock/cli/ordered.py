"""The ordered tail of `tail`: rows in the order of their time, as they are released."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import psycopg
from rich.text import Text

from tidelock.changes.reader import Change, change_forms
from tidelock.cli import terminal
from tidelock.cli.flags import check_texts
from tidelock.cli.session import read_catalog
from tidelock.columns import ColumnType
from tidelock.errors import SettingsError
from tidelock.instants import format_instant
from tidelock.model import DEFAULT_TENANT
from tidelock.postgres.course import IDLE, Failure, Turn, failure_of
from tidelock.postgres.database import Database
from tidelock.postgres.listener import FOLD_CHANNEL
from tidelock.postgres.loop import Reader, ReaderLoop
from tidelock.postgres.reconnect import database_errors
from tidelock.settings import Settings
from tidelock.views.ordered import OrderedTail, is_watermark, ordered_table

_SOURCE_TIMESTAMP_MAX = 2**63 - 1
# A notification may be lost with its connection, so poll this often as well.
_POLL_S = 1.0
_POSITION_WIDTH = 8
_TIME_WIDTH = len("2026-01-31T23:59:59.999999Z")


def tail_ordered(
    database: Database,
    settings: Settings,
    stream: str,
    *,
    number: int | None,
    after: int | None,
    tenant: str | None,
    follow: bool,
    json: bool,
) -> None:
    """The last `number` released rows, or all after a source timestamp; then rows as they are released."""
    check_texts(tenant=tenant, stream=stream)
    if after is not None and not 0 <= after <= _SOURCE_TIMESTAMP_MAX:
        raise SettingsError(f"with --ordered, --after is a source timestamp from 0 to {_SOURCE_TIMESTAMP_MAX}")
    catalog = asyncio.run(database.patience.insist(lambda: read_catalog(database, settings, "tidelock tail")))
    table = ordered_table(catalog, stream)
    kept = catalog.definitions.streams[stream].live
    if follow and not kept:
        raise SettingsError(f"{stream} has live = false, so its changes cannot be followed; omit --follow")
    tail = OrderedTail(table, tenant, kept=kept, position=after or 0)
    printer = _Printer(table.columns, json=json)

    def first() -> None:
        with database.connect_sync(name="tidelock tail") as connection:
            printer.print(tail.read(connection) if number is None else tail.last(connection, number))

    with database_errors("tail"):
        database.patience.insist_sync(first)
    if follow:
        following = _OrderedFollowing(tail, printer)
        ReaderLoop(database, [following], name="tidelock tail", channels=[FOLD_CHANNEL]).run(threading.Event())


class _OrderedFollowing(Reader):
    """Prints rows as they are released, until interrupted. Waits through outages of the database."""

    poll_s = pause_max_s = _POLL_S

    def __init__(self, tail: OrderedTail, printer: _Printer) -> None:
        self._tail = tail
        self._printer = printer
        self._connection: psycopg.Connection[Any] | None = None

    def open(self, connection: psycopg.Connection[Any]) -> bool:
        self._connection = connection
        return True

    def turn(self) -> Turn:
        assert self._connection is not None
        with database_errors("tail"):
            self._printer.print(self._tail.read(self._connection))
        return IDLE

    def failed(self, error: Exception) -> Failure:
        if (failure := failure_of(error)) is not Failure.AWAY:
            raise error
        return failure


class _Printer:
    """Prints the rows that an ordered tail reads."""

    def __init__(self, columns: Mapping[str, ColumnType], *, json: bool) -> None:
        self._form = change_forms(columns)
        self._json = json
        self._console = terminal.console()
        #: source timestamp of the last change of a definition that was reported
        self._rewritten = 0

    def print(self, changes: Iterable[Change]) -> None:
        if self._json:
            terminal.write(msgspec.json.encode(self._object(change)) for change in changes if self._is_told(change))
            return
        for change in changes:
            if self._is_told(change):
                terminal.show_line(self._console, self._line(change))

    def _is_told(self, change: Change) -> bool:
        if is_watermark(change) or (change.old is None and change.new is not None):
            return True
        # Rows already printed never change, except by a changed definition.
        if self._rewritten != change.source_timestamp:
            self._rewritten = change.source_timestamp
            at = format_instant(change.source_timestamp)
            terminal.say(f"The definition changed at {at}, which changed earlier rows too. --after 0 shows them.")
        return False

    def _object(self, change: Change) -> dict[str, object]:
        at = str(change.source_timestamp)
        if is_watermark(change):
            return {"sourceTimestamp": at, "tenantId": change.tenant_id, "watermark": _watermark(change)}
        return {"sourceTimestamp": at, "row": self._form(change)["new"]}

    def _line(self, change: Change) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        if is_watermark(change):
            line.append(f"{'watermark':>{_POSITION_WIDTH + 2}}  ", style="blue")
            line.append(f"{_watermark(change):<{_TIME_WIDTH}}", style="blue")
            return line if change.tenant_id == DEFAULT_TENANT else line.append(f"  {change.tenant_id}", style="magenta")
        row = self._form(change)["new"]
        assert isinstance(row, dict), "only rows that are there are told of"
        line.append(f"{row['position']:>{_POSITION_WIDTH + 2}}", style="bold")
        line.append(f"  {row['event_time']:<{_TIME_WIDTH}}", style="cyan")
        if change.tenant_id != DEFAULT_TENANT:
            line.append(f"  {change.tenant_id}", style="magenta")
        for name, value in row.items():
            if name not in ("tenant_id", "position", "event_time") and value is not None:
                line.append(f"  {name} ", style="dim")
                line.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        return line


def _watermark(change: Change) -> str:
    assert change.new is not None, "a watermark never goes"
    return format_instant(change.new["watermark"])
