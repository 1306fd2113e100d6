"""Commands that read the fold's tables: `usage`, `changes`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tidelock.errors import SettingsError
from tidelock.model import DEFAULT_TENANT
from tidelock.ops import terminal
from tidelock.ops.commands.explaining import AsOf
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, read_settings
from tidelock.ops.commands.slices import Tenant, slice_of

if TYPE_CHECKING:
    from tidelock.changes.reader import Change
    from tidelock.fold.tables import Table
    from tidelock.ops.usage import Usage, Wanted
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings

app = typer.Typer()

_CHANGES_MAX = 100_000
_SOURCE_TIMESTAMP_MAX = 2**63 - 1


@app.command(rich_help_panel="Tables")
def usage(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Name of a meter.")],
    customer: Annotated[str, typer.Argument(metavar="CUSTOMER", help="A customerRef.")],
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Periods that end after: RFC 3339 or epoch ms.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Periods that start before: RFC 3339 or epoch ms.")
    ] = None,
    groups: Annotated[bool, typer.Option("--groups", help="By the meter's groups.")] = False,
    as_of: AsOf = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose customer.")] = DEFAULT_TENANT,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what a customer used, period by period.

    [dim]tidelock usage api_calls cus_1 --from 2026-01-01T00:00:00Z[/]
    [dim]tidelock usage api_calls cus_1 --as-of 41[/]
    """
    from tidelock.ops.usage import Wanted

    settings = read_settings(config, data=data, database_url=database_url)
    asked = slice_of(tenant, metric, customer, None, since, until)
    wanted = Wanted(tenant, metric, customer, asked.occurred_from, asked.occurred_to, grouped=groups, as_of=as_of)
    with found_ledger(settings) as database:
        found = asyncio.run(_usage(database, settings, wanted))
    if json:
        terminal.write_json(found)
    else:
        _show_usage(found, groups=groups)


@app.command(rich_help_panel="Tables")
def changes(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Such as counters, or a keyed stream.")],
    number: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="COUNT",
            help="Only the last so many.",
            show_default="all that are kept",
            min=1,
            max=_CHANGES_MAX,
        ),
    ] = None,
    after: Annotated[
        int | None, typer.Option("--after", metavar="SOURCE_TIMESTAMP", help="Behind this source timestamp.")
    ] = None,
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what the fold did to a table: one line per key and request, with the row before and after.

    [dim]tidelock changes counters -n 20[/]
    [dim]tidelock changes trades --after 1794780600123456000 --json[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    if after is not None and not 0 <= after <= _SOURCE_TIMESTAMP_MAX:
        raise SettingsError(f"--after is a whole number from 0 to {_SOURCE_TIMESTAMP_MAX}")
    with found_ledger(settings) as database:
        shape = asyncio.run(database.patience.insist(lambda: _table(database, settings, table)))
        found = _changes(database, table, after, tenant, number)
        _print(shape, found, json=json)


async def _usage(database: Database, settings: Settings, wanted: Wanted) -> Usage:
    from tidelock.live.shapes import Shapes
    from tidelock.ops.usage import read_usage

    async with await database.connect(name="tidelock usage") as connection:
        shapes = Shapes(settings.definitions)
        return await read_usage(
            connection, shapes, wanted, items_max=settings.usage_items_max, timeout_ns=settings.explain_timeout
        )


async def _table(database: Database, settings: Settings, name: str) -> Table:
    from tidelock.live.shapes import Shapes

    async with await database.connect(name="tidelock changes") as connection:
        return (await Shapes(settings.definitions).read(connection)).table(name)


def _changes(
    database: Database, table: str, after: int | None, tenant: str | None, number: int | None
) -> Iterator[Change]:
    """The last `number` changes, or all of them."""
    from tidelock.changes.reader import before_last, changes_after, pruned_through, read_changes

    def read(last: Change | None) -> Iterator[Change]:
        with database.connect_sync(name="tidelock changes") as connection:
            if last is not None:
                yield from changes_after(connection, last, tables=[table])
                return
            if after is not None:
                start = after
            elif tenant is None and number is not None:
                start = before_last(connection, table, number)
            else:
                start = pruned_through(connection)
            yield from read_changes(connection, after=start, tables=[table])

    found = database.patience.read_on(read)
    chosen = (change for change in found if tenant is None or change.tenant_id == tenant)
    yield from chosen if number is None else deque(chosen, maxlen=number)


def _print(table: Table, found: Iterator[Change], *, json: bool) -> None:
    import msgspec

    from tidelock.changes.forms import change_forms

    form = change_forms(table.columns)
    if json:
        terminal.write(msgspec.json.encode(form(change)) for change in found)
        return
    from tidelock.ops.change_lines import change_line

    shown = terminal.console()
    for change in found:
        line = change_line(change, form(change))
        shown.print(line, no_wrap=True, overflow="ellipsis" if shown.is_terminal else "ignore", crop=False)


def _show_usage(found: Usage, *, groups: bool) -> None:
    what = f"[bold]{escape(found.metric)}[/] of [bold]{escape(found.customer_ref)}[/]"
    through = f"through sequence {found.through_sequence:,}"
    terminal.show(f"{what}: {found.aggregation} by {found.period}, {through}")
    if not found.items:
        terminal.say("Nothing was used in that time.")
        return
    terminal.show_table(
        ["from", "to", *(["group"] if groups else []), "value#", "adjustment#", "total#", "watermark"],
        [
            (
                item.period_start,
                item.period_end,
                *([_cell(item.group)] if groups else []),
                _cell(item.value),
                _cell(item.adjustment),
                f"[bold]{_cell(item.total)}[/]",
                _cell(item.watermark),
            )
            for item in found.items
        ],
    )


def _cell(value: Any) -> str:
    return "" if value is None else escape(str(value))
