"""The ordered tail of `tail`: rows in the order of their time, as they are released."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tidelock.errors import SettingsError, Unreachable
from tidelock.ops.commands.slices import slice_of

if TYPE_CHECKING:
    from tidelock.live.shapes import Shape
    from tidelock.ops.ordered import OrderedTail
    from tidelock.ops.ordered_lines import OrderedPrinter
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings

_SOURCE_TIMESTAMP_MAX = 2**63 - 1
# A notification may be lost with its connection: look this often in any case.
_POLL_S = 1.0


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
    """The last `number` released rows, or all behind a source timestamp; then what is released from then on."""
    from tidelock.ops.ordered import OrderedTail, ordered_table
    from tidelock.ops.ordered_lines import OrderedPrinter
    from tidelock.postgres.reconnect import database_errors

    slice_of(tenant, stream, None, None)  # checks that they are texts
    if after is not None and not 0 <= after <= _SOURCE_TIMESTAMP_MAX:
        raise SettingsError(f"with --ordered, --after is a source timestamp from 0 to {_SOURCE_TIMESTAMP_MAX}")
    shape = asyncio.run(database.patience.insist(lambda: _shape(database, settings)))
    table = ordered_table(shape, stream)
    kept = shape.definitions.streams[stream].live
    if follow and not kept:
        raise SettingsError(f"{stream} has live = false, so that there is nothing to follow; leave out --follow")
    tail = OrderedTail(table, tenant, kept=kept, position=after or 0)
    printer = OrderedPrinter(table.columns, json=json)

    def first() -> None:
        with database.connect_sync(name="tidelock tail") as connection:
            printer.print(tail.read(connection) if number is None else tail.last(connection, number))

    with database_errors("tail"):
        database.patience.insist_sync(first)
    if follow:
        _follow(database, tail, printer)


def _follow(database: Database, tail: OrderedTail, printer: OrderedPrinter) -> None:
    """Until it is interrupted. An outage of the database is waited through."""
    from tidelock.postgres.reconnect import database_errors

    while True:
        try:
            with database_errors("tail"), database.connect_sync(name="tidelock tail") as connection:
                connection.execute("LISTEN tidelock_fold")
                while True:
                    printer.print(tail.read(connection))
                    for _ in connection.notifies(timeout=_POLL_S, stop_after=1):
                        pass
        except Unreachable:
            time.sleep(_POLL_S)


async def _shape(database: Database, settings: Settings) -> Shape:
    from tidelock.live.shapes import Shapes

    async with await database.connect(name="tidelock tail") as connection:
        return await Shapes(settings.definitions).read(connection)
