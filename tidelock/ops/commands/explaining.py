"""The command `explain`: why a number is what it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.errors import Difference, SettingsError
from tidelock.model import DEFAULT_TENANT
from tidelock.ops import terminal
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, read_settings
from tidelock.ops.commands.slices import check_texts

if TYPE_CHECKING:
    from tidelock.ops.explain.explaining import Asked
    from tidelock.ops.explain.shapes import ExplainedEvent, Explanation
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings

app = typer.Typer()

AsOf = Annotated[
    int | None,
    typer.Option("--as-of", metavar="SEQUENCE", min=1, help="As it was when the fold had come to this sequence."),
]

_EVENTS_MAX = 1_000
_COLOURS = {"folded": "green", "adjusted": "yellow", "error": "red"}


@app.command(rich_help_panel="Tables")
def explain(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Name of a meter.")],
    customer: Annotated[str, typer.Argument(metavar="CUSTOMER", help="A customerRef.")],
    period: Annotated[
        str | None,
        typer.Option("--period", metavar="TIME", help="An instant or a date of the period.", show_default="latest"),
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="TEXT", help="Only this group of the meter.")] = None,
    no_group: Annotated[bool, typer.Option("--no-group", help="Only what has no value to be grouped by.")] = False,
    as_of: AsOf = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose customer.")] = DEFAULT_TENANT,
    events: Annotated[
        int, typer.Option("--events", metavar="COUNT", help="Show so many events, the first.", min=0, max=_EVENTS_MAX)
    ] = 10,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Explain a number: what was counted, what came late, what was not counted, and the events themselves.

    Exits with 1 if the counter that the fold keeps is another one.

    [dim]tidelock explain api_calls cus_1[/]
    [dim]tidelock explain api_calls cus_1 --period 2026-01-01 --events 100[/]
    [dim]tidelock explain api_calls cus_1 --as-of 41 --json[/]
    """
    from tidelock.ops.explain.explaining import Asked

    settings = read_settings(config, data=data, database_url=database_url)
    check_texts(tenant=tenant, metric=metric, customer=customer, group=group)
    if no_group and group is not None:
        raise SettingsError("--group and --no-group are two groups; give one")
    asked = Asked(tenant, metric, customer, _instant(period), group, no_group or group is not None, as_of)
    with found_ledger(settings) as database:
        found = asyncio.run(_explained(database, settings, asked, events))
    if json:
        terminal.write_json(found)
    else:
        _show(found)
    if found.agrees is False:
        raise Difference(
            "the counter that the fold keeps is another one than its events make; see tidelock recompute --check"
        )


async def _explained(database: Database, settings: Settings, asked: Asked, events: int) -> Explanation:
    from tidelock.live.shapes import Shapes
    from tidelock.ops.explain.explaining import Explaining
    from tidelock.ops.explain.route import limits_of
    from tidelock.ops.paging import Paging

    async with await database.connect(name="tidelock explain") as connection:
        explaining = Explaining(connection, Shapes(settings.definitions), limits_of(settings))
        return await explaining.explain(asked, Paging(events, descending=False, position=None))


def _instant(period: str | None) -> int | None:
    from tidelock.ops.explain.route import parse_period

    try:
        return None if period is None else parse_period(period)
    except ValueError as error:
        raise SettingsError(f"--period: {error}") from None


def _show(found: Explanation) -> None:
    group = "" if found.group is None else f", group [bold]{escape(found.group)}[/]"
    what = f"[bold]{escape(found.metric)}[/] of [bold]{escape(found.customer_ref)}[/]{group}"
    terminal.show(f"{what}, {found.period_start} to {found.period_end}, through sequence {found.through_sequence:,}")
    terminal.show(f"[dim]{escape(found.definition)}[/]")
    terminal.show(f"\n[bold green]{_cell(found.total)}[/] {_sum(found)}")
    terminal.show(f"{escape(found.why)}\n")
    rows = [
        (f"[green]folded[/], watermark {_cell(found.watermark)}", found.folded),
        ("[yellow]adjusted[/], too late", found.adjusted),
    ]
    terminal.show_table(
        ["part", "events#", "sum#", "min#", "max#", "last#", "first sequence#", "last sequence#"],
        [
            (name, f"{part.count:,}", *map(_cell, (part.sum, part.min, part.max, part.last)),
             *map(_cell, (part.first_sequence, part.last_sequence)))
            for name, part in rows if part.count
        ],
    )  # fmt: skip
    if found.items:
        terminal.show("")
        terminal.show_table(
            ["sequence#", "occurred at", "part", "counted#", "change#", "total#", ""], map(_event, found.items)
        )
    if found.next is not None and found.items:
        terminal.show("[dim]There are more events: --events COUNT shows them.[/]")


def _sum(found: Explanation) -> str:
    if not found.adjusted.count or found.value is None or found.adjustment is None:
        return ""
    sign, size = ("-", found.adjustment[1:]) if found.adjustment.startswith("-") else ("+", found.adjustment)
    return f"= {found.value} in time {sign} {size} by what came late"


def _event(event: ExplainedEvent) -> tuple[str, ...]:
    colour = _COLOURS.get(event.part, "dim")
    numbers = map(_cell, (event.counted, event.change, event.total))
    note = _cell(event.message or event.resource_id)
    return f"{event.ingress_sequence:,}", event.occurred_at, f"[{colour}]{event.part}[/]", *numbers, f"[dim]{note}[/]"


def _cell(value: object) -> str:
    return "" if value is None else escape(str(value))
