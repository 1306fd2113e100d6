"""Commands about periods: `close`, `periods`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, check_texts, read_settings
from tidelock.cli.session import found_ledger
from tidelock.errors import SettingsError
from tidelock.model import DEFAULT_TENANT

if TYPE_CHECKING:
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings
    from tidelock.usage.closing import MeterPeriods, WantedClose

app = typer.Typer()

_Metric = Annotated[str | None, typer.Option("--metric", metavar="NAME", help="Only this meter.", show_default="all")]


@app.command(rich_help_panel="Tables")
def close(
    through: Annotated[
        str | None,
        typer.Option(
            "--through", metavar="TIME", help="Close every period that ends by this date or time (RFC 3339), in UTC."
        ),
    ] = None,
    period: Annotated[
        str | None,
        typer.Option(
            "--period",
            metavar="PERIOD",
            help="Short for --through with the end of a month, week or day: 2026-10, 2026-W44 or 2026-10-31.",
        ),
    ] = None,
    metric: _Metric = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="Only this tenant.", show_default="all, and those to come"),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Close periods: from then on no event changes the `value` of their counters, whatever arrives later.

    An event that arrives for a closed period becomes an adjustment with the reason `closed`. The table `statements`
    keeps the counters as they were at the close. A close is recorded in the ledger and cannot be undone.

    [dim]tidelock close --period 2026-10[/]
    [dim]tidelock close --through 2026-11-01 --metric api_calls --tenant acme[/]
    """
    from tidelock.usage.closing import WantedClose

    settings = read_settings(config, data=data, database_url=database_url)
    check_texts(tenant=tenant, metric=metric)
    wanted = WantedClose(_end(through, period), metric, tenant)
    with found_ledger(settings) as database:
        sequence = asyncio.run(_closed(settings, database, wanted))
    if json:
        terminal.write_json({"ingressSequence": sequence})
    elif sequence is None:
        terminal.show("Nothing is left to close: these periods are already closed.")
    else:
        terminal.show(
            f"Recorded as sequence [bold]{sequence}[/]. When the fold reaches it, the counters are closed and "
            "stated; `tidelock status` shows how far the fold is."
        )


@app.command(rich_help_panel="Tables")
def periods(
    metric: _Metric = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Tenant of the counters.")] = DEFAULT_TENANT,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show which periods are open, when they will close automatically, and which are closed.

    [dim]tidelock periods --metric api_calls[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    check_texts(tenant=tenant, metric=metric)
    with found_ledger(settings) as database:
        found = asyncio.run(_periods(settings, database, tenant, metric))
    if json:
        terminal.write_json(*found)
        return
    if not found:
        terminal.say("No meter has counted anything yet.")
        return
    rows = [row for meter in found for row in _rows(meter)]
    terminal.show_table(["meter", "closed through", "open from", "to", "counters#", "closes"], rows)


def _rows(meter: MeterPeriods) -> list[tuple[str, ...]]:
    name, closed = escape(meter.metric), meter.closed_through or "[dim]never closed[/]"
    if not meter.open:
        return [(name, closed, "[dim]nothing is open[/]", "", "", "")]
    return [
        (name, closed, each.period_start, each.period_end, f"{each.counters:,}", each.closes_at or "[dim]by hand[/]")
        for each in meter.open
    ]


def _end(through: str | None, period: str | None) -> int:
    from tidelock.usage.closing import PERIODS_ALLOWED, read_period, read_through

    if (through is None) == (period is None):
        raise SettingsError("pass either --through or --period")
    if period is not None:
        try:
            start, end = read_period(period)
        except ValueError:
            raise SettingsError(f"--period is {PERIODS_ALLOWED}") from None
        if end == start + 1:
            raise SettingsError(f"--period is {PERIODS_ALLOWED}; for an instant use --through")
        return end
    assert through is not None
    try:
        return read_through(through)
    except ValueError as error:
        raise SettingsError(f"--through: {error}") from None


async def _closed(settings: Settings, database: Database, wanted: WantedClose) -> int | None:
    from tidelock.ledger.opening import opened_sequencer
    from tidelock.usage.closing import close_periods

    async with opened_sequencer(settings, database) as sequencer:
        return await close_periods(sequencer, wanted)


async def _periods(settings: Settings, database: Database, tenant: str, metric: str | None) -> list[MeterPeriods]:
    from tidelock.usage.closing import read_periods

    async with await database.connect(name="tidelock periods") as connection:
        return await read_periods(connection, tenant, metric, timeout_ns=settings.explain_timeout)
