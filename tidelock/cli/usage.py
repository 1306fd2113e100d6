"""The command `usage`: one customer's, or an export of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, check_texts, read_settings, slice_of
from tidelock.cli.session import found_ledger, log_to_stderr, stop_on_signals, teller
from tidelock.cli.tables import AsOf
from tidelock.errors import SettingsError
from tidelock.model import DEFAULT_TENANT

if TYPE_CHECKING:
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings
    from tidelock.usage.exports import Exported
    from tidelock.usage.usage import Usage, Wanted

app = typer.Typer()

#: rows of an export shown on a terminal
_SHOWN_MAX = 1_000
_TOLD_EVERY = 5_000


class Length(StrEnum):
    """Lengths of a line's period."""

    hour = "hour"
    day = "day"
    week = "week"
    month = "month"


class Format(StrEnum):
    """The format of an export."""

    table = "table"
    csv = "csv"
    json = "json"


@app.command(rich_help_panel="Tables")
def usage(
    metric: Annotated[
        str | None, typer.Argument(metavar="[METRIC]", help="Name of a meter; default: all.", show_default=False)
    ] = None,
    customer: Annotated[
        str | None,
        typer.Argument(metavar="[CUSTOMER]", help="A customerRef; default: all customers.", show_default=False),
    ] = None,
    named: Annotated[str | None, typer.Option("--metric", metavar="NAME", help="The same as METRIC.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Only periods that end after this time (RFC 3339 or epoch milliseconds)."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TIME", help="Only periods that start before this time (RFC 3339 or epoch milliseconds)."
        ),
    ] = None,
    period: Annotated[
        str | None,
        typer.Option(
            "--period",
            metavar="PERIOD",
            help="Only periods that overlap this month, week or day: 2026-10, 2026-W44 or 2026-10-31.",
        ),
    ] = None,
    window: Annotated[
        Length | None,
        typer.Option(
            "--window",
            help="Show a line for each hour, day, week or month of one customer.",
            show_default="the meter's period",
        ),
    ] = None,
    groups: Annotated[
        bool, typer.Option("--group", "--groups", help="Show one line for each group of the meter.")
    ] = False,
    as_of: AsOf = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Tenant of the customers.")] = DEFAULT_TENANT,
    form: Annotated[Format, typer.Option("--format", metavar="table|csv|json", help="Output format.")] = Format.table,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what a customer used, period by period, or export what all customers used.

    The export for all customers is written in one pass, ordered by customer, period and group, however many there are;
    with `--as-of` the ledger is folded again on Spark.

    [dim]tidelock usage api_calls cus_1 --from 2026-01-01T00:00:00Z[/]
    [dim]tidelock usage api_calls cus_1 --as-of 41[/]
    [dim]tidelock usage api_calls cus_1 --window day --period 2026-10[/]
    [dim]tidelock usage --period 2026-10 --format csv > october.csv[/]
    """
    from tidelock.usage.usage import Wanted

    settings = read_settings(config, data=data, database_url=database_url)
    if metric is not None and named is not None:
        raise SettingsError("METRIC and --metric are the same; give only one")
    metric, form = metric or named, Format.json if json else form
    if customer is not None and metric is None:
        raise SettingsError("to show one customer, name the meter: tidelock usage METRIC CUSTOMER")
    asked = slice_of(tenant, metric, customer, occurred_from=since, occurred_to=until)
    start, end = _stretch(period, asked.occurred_from, asked.occurred_to)
    length = None if window is None else window.value
    wanted = Wanted(tenant, metric or "", customer or "", start, end, window=length, grouped=groups, as_of=as_of)
    check_texts(tenant=tenant, metric=metric, customer=customer)
    with found_ledger(settings) as database:
        if customer is None:
            _export(settings, database, wanted, form)
            return
        found = asyncio.run(_usage(database, settings, wanted))
    if json:
        terminal.write_json(found)
    elif form is Format.table:
        _show_usage(found, groups=groups)
    else:
        _write(form, _single(found, tenant))


def _stretch(period: str | None, since: int | None, until: int | None) -> tuple[int | None, int | None]:
    from tidelock.usage.closing import PERIODS_ALLOWED, read_period

    if period is None:
        return since, until
    if since is not None or until is not None:
        raise SettingsError("--period is short for --from and --to; give one or the other")
    try:
        return read_period(period)
    except ValueError:
        raise SettingsError(f"--period is {PERIODS_ALLOWED}") from None


async def _usage(database: Database, settings: Settings, wanted: Wanted) -> Usage:
    from tidelock.usage.usage import read_usage
    from tidelock.views.catalog import CatalogReader

    async with await database.connect(name="tidelock usage") as connection:
        catalogs = CatalogReader(settings.definitions)
        return await read_usage(
            connection, catalogs, wanted, items_max=settings.usage_items_max, timeout_ns=settings.explain_timeout
        )


def _show_usage(found: Usage, *, groups: bool) -> None:
    what = f"[bold]{escape(found.metric)}[/] of [bold]{escape(found.customer_ref)}[/]"
    through = f"through sequence {found.through_sequence:,}"
    terminal.show(f"{what}: {found.aggregation} by {found.window}, {through}")
    if not found.items:
        terminal.say("No usage in that time.")
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


def _single(found: Usage, tenant: str) -> Iterator[Exported]:
    from tidelock.usage.exports import Exported, UsageRow

    for item in found.items:
        yield Exported(found.metric, tenant, UsageRow(found.customer_ref, **msgspec.structs.asdict(item)))


def _export(settings: Settings, database: Database, wanted: Wanted, form: Format) -> None:
    """Usage of all customers, now or as of a sequence."""
    from tidelock.usage.usage import check_for_all, meter_of

    definitions = asyncio.run(_catalog(settings, database)).definitions
    metrics = [wanted.metric] if wanted.metric else list(definitions.meters)
    if wanted.grouped and not any(meter_of(definitions, name).group_by for name in metrics):
        raise SettingsError(f"{', '.join(metrics) or 'no meter'} has no groups: it is defined without group_by")
    for name in metrics:
        check_for_all(meter_of(definitions, name), wanted)
    if wanted.as_of is None:
        asyncio.run(_exported(settings, database, wanted, metrics, form))
        return
    with _past(settings, database, metrics, wanted.as_of) as schema:
        asyncio.run(_exported(settings, database, wanted, metrics, form, schema=schema))


@contextmanager
def _past(settings: Settings, database: Database, metrics: Sequence[str], as_of: int) -> Iterator[str]:
    from tidelock import app as composition

    log_to_stderr(settings.log_level)
    stop = stop_on_signals()
    with terminal.Work("folding", "events") as work:
        past = composition.counters_as_of(
            settings, database, metrics, as_of, stop=stop, tell=teller("usage", False),
            progress=lambda done, end: work.told(done, done / end),
        )  # fmt: skip
        with past as schema:
            if schema is None:
                raise typer.Exit(130)
            yield schema


async def _catalog(settings: Settings, database: Database) -> Any:
    from tidelock.views.catalog import CatalogReader

    async with await database.connect(name="tidelock usage") as connection:
        return await CatalogReader(settings.definitions).read(connection)


async def _exported(
    settings: Settings,
    database: Database,
    wanted: Wanted,
    metrics: Sequence[str],
    form: Format,
    *,
    schema: str | None = None,
) -> None:
    from tidelock.tables import SCHEMA
    from tidelock.usage.exports import count_usage, export_usage

    async with await database.connect(name="tidelock usage") as connection:
        definitions = (await _read(settings, connection)).definitions
        about = await count_usage(connection, schema or SCHEMA)
        found = export_usage(connection, definitions, wanted, metrics, schema or SCHEMA)
        if form is Format.table:
            await _show_all(found)
            return
        with terminal.output() as out, terminal.Work("exporting", "rows") as work:
            await _write_all(found, form, out, lambda done: work.told(done, min(1.0, done / about)))


async def _read(settings: Settings, connection: Any) -> Any:
    from tidelock.views.catalog import CatalogReader

    return await CatalogReader(settings.definitions).read(connection)


async def _write_all(found: AsyncIterator[Exported], form: Format, out: IO[bytes], told: Callable[[int], None]) -> None:
    line = _line(form, out)
    done = 0
    async for each in found:
        out.write(line(each))
        done += 1
        if done % _TOLD_EVERY == 0:
            told(done)


def _write(form: Format, found: Iterator[Exported]) -> None:
    with terminal.output() as out:
        out.writelines(map(_line(form, out), found))


def _line(form: Format, out: IO[bytes]) -> Callable[[Exported], bytes]:
    from tidelock.http.csvpages import csv_line
    from tidelock.usage.exports import COLUMNS, cells

    if form is Format.json:
        return lambda each: msgspec.json.encode(dict(zip(COLUMNS, cells(each), strict=True))) + b"\n"
    out.write(csv_line(COLUMNS).encode())
    return lambda each: csv_line(cells(each)).encode()


async def _show_all(found: AsyncIterator[Exported]) -> None:
    """Show the first rows: a terminal is no place for a million."""
    from tidelock.usage.exports import cells

    rows: list[tuple[str, ...]] = []
    more = False
    async for each in found:
        if len(rows) == _SHOWN_MAX:
            more = True
            break
        name, _, customer, start, end, *rest = cells(each)
        rows.append(tuple(map(_cell, (name, customer, start, end, *rest))))
    if not rows:
        terminal.say("No usage in that time.")
        return
    terminal.show_table(["meter", "customer", "from", "to", "group", "value#", "adjustment#", "total#"], rows)
    if more:
        terminal.say(f"There are more than {_SHOWN_MAX:,} rows: --format csv writes them all.")


def _cell(value: Any) -> str:
    return "" if value is None else escape(str(value))
