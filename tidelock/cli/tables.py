"""Commands about derived tables: `changes`, `explain`, `drain`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.text import Text

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, Tenant, check_texts, read_settings
from tidelock.cli.session import found_ledger, read_catalog
from tidelock.columns import ColumnType
from tidelock.errors import Difference, SettingsError
from tidelock.instants import format_instant
from tidelock.model import DEFAULT_TENANT
from tidelock.sections import shown

if TYPE_CHECKING:
    from tidelock.changes.reader import Change
    from tidelock.definitions import Definitions
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings
    from tidelock.usage.explain import Asked, ExplainedEvent, Explanation

app = typer.Typer()

AsOf = Annotated[
    int | None,
    typer.Option("--as-of", metavar="SEQUENCE", min=1, help="Show the usage as it was at this sequence number."),
]

_CHANGES_MAX = 100_000
_EVENTS_MAX = 1_000
_SOURCE_TIMESTAMP_MAX = 2**63 - 1
_OPERATIONS = {"insert": "green", "update": "yellow", "delete": "red"}
_PARTS = {"folded": "green", "adjusted": "yellow", "error": "red", "void": "magenta", "amend": "magenta"}


@app.command(rich_help_panel="Tables")
def changes(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Table, such as counters, a window or a keyed stream.")],
    number: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="COUNT",
            help="Number of most recent changes to show.",
            show_default="all that are retained",
            min=1,
            max=_CHANGES_MAX,
        ),
    ] = None,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="SOURCE_TIMESTAMP", help="Only changes after this source timestamp."),
    ] = None,
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the changes of a table: one line per key and request, with the row before and after.

    [dim]tidelock changes counters -n 20[/]
    [dim]tidelock changes trades --after 1794780600123456000 --json[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    if after is not None and not 0 <= after <= _SOURCE_TIMESTAMP_MAX:
        raise SettingsError(f"--after must be a whole number from 0 to {_SOURCE_TIMESTAMP_MAX}, not {after}")
    with found_ledger(settings) as database:
        catalog = asyncio.run(database.patience.insist(lambda: read_catalog(database, settings, "tidelock changes")))
        columns = catalog.table(table).columns
        _print_changes(columns, _changes(database, table, after, tenant, number), json=json)


@app.command(rich_help_panel="Tables")
def explain(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Name of a meter.")],
    customer: Annotated[str, typer.Argument(metavar="CUSTOMER", help="The customer's customerRef.")],
    period: Annotated[
        str | None,
        typer.Option("--period", metavar="TIME", help="An instant or date in the period.", show_default="latest"),
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="TEXT", help="Only this group of the meter.")] = None,
    no_group: Annotated[
        bool, typer.Option("--no-group", help="Only the group of events without a value in the group column.")
    ] = False,
    as_of: AsOf = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Tenant of the customer.")] = DEFAULT_TENANT,
    events: Annotated[
        int,
        typer.Option(
            "--events", metavar="COUNT", help="Number of events to show, from the first.", min=0, max=_EVENTS_MAX
        ),
    ] = 10,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Explain a number: what was counted, what was late, what was not counted, and the events themselves.

    Exits with 1 if the stored counter differs.

    [dim]tidelock explain api_calls cus_1[/]
    [dim]tidelock explain api_calls cus_1 --period 2026-01-01 --events 100[/]
    [dim]tidelock explain api_calls cus_1 --as-of 41 --json[/]
    """
    from tidelock.usage.explain import Asked

    settings = read_settings(config, data=data, database_url=database_url)
    check_texts(tenant=tenant, metric=metric, customer=customer, group=group)
    if no_group and group is not None:
        raise SettingsError("--group and --no-group select different groups; give only one")
    asked = Asked(
        tenant, metric, customer, _instant(period),
        group=group, of_group=no_group or group is not None, as_of=as_of,
    )  # fmt: skip
    with found_ledger(settings) as database:
        found = asyncio.run(_explained(database, settings, asked, events))
    if json:
        terminal.write_json(found)
    else:
        _show_explanation(found)
    if found.agrees is False:
        raise Difference("the stored counter differs from what its events give; see tidelock recompute --check")


@app.command(rich_help_panel="Tables")
def drain(
    window: Annotated[
        str | None,
        typer.Argument(
            metavar="[WINDOW]",
            help="Name of an event-time window, or STREAM_ordered; default: all.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Close open windows and release held rows, without waiting for later events.

    The drain is recorded in the ledger, so a replay closes the same windows at the same point. Later events for closed
    windows are late, with the reason `drained`.

    [dim]tidelock drain volume_1m[/]
    """
    from tidelock.ledger.opening import record_control

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        windows = drained_by(_definitions_in_effect(database, settings), window)
        control = {"type": "drain"} if window is None else {"type": "drain", "window": window}
        recorded = record_control(settings, database, control)
    if json:
        terminal.write_json(
            {
                "ingressSequence": recorded.ingress_sequence,
                "sourceTimestamp": recorded.source_timestamp,
                "window": window,
                "windows": windows,
            }
        )
        return
    at = format_instant(int(recorded.source_timestamp))
    terminal.show(
        f"Recorded as sequence [bold]{recorded.ingress_sequence}[/] at {at}, "
        f"source timestamp {recorded.source_timestamp}.\n"
        f"When the fold reaches it, the open windows of {escape(', '.join(windows))} close and held rows are "
        "released, with that source timestamp. `tidelock status` shows how far the fold is."
    )


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


def _print_changes(columns: Mapping[str, ColumnType], found: Iterator[Change], *, json: bool) -> None:
    from tidelock.changes.reader import change_forms

    form = change_forms(columns)
    if json:
        terminal.write(msgspec.json.encode(form(change)) for change in found)
        return
    console = terminal.console()
    for change in found:
        terminal.show_line(console, _change_line(change, form(change)))


def _change_line(change: Change, form: Mapping[str, Any]) -> Text:
    """Time, operation, key, and the columns that changed."""
    old, new = form["old"], form["new"]
    operation = "insert" if old is None else "delete" if new is None else "update"
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{change.source_timestamp}", style="bold")
    line.append(f"  {format_instant(change.source_timestamp)}", style="dim")
    if change.tenant_id != DEFAULT_TENANT:
        line.append(f"  {change.tenant_id}", style="magenta")
    line.append(f"  {operation}", style=_OPERATIONS[operation])
    line.append(f"  {change.key}", style="cyan")
    for name, value in (new or {}).items():
        before = old.get(name) if old is not None else None
        if name != "tenant_id" and value != before:
            line.append(f"  {name} ", style="dim")
            line.append(f"{_text(before)} -> {_text(value)}" if old is not None else _text(value))
    return line


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _explained(database: Database, settings: Settings, asked: Asked, events: int) -> Explanation:
    from tidelock.http.parameters import following
    from tidelock.ledger.reader import Page
    from tidelock.usage.explain import Explaining, ExplainLimits
    from tidelock.views.catalog import CatalogReader

    async with await database.connect(name="tidelock explain") as connection:
        explaining = Explaining(connection, CatalogReader(settings.definitions), ExplainLimits.of(settings))
        found, more = await explaining.explain(asked, limit=events)
    # A program continues after this page with the API's `cursor`.
    return msgspec.structs.replace(found, next=following(Page(found.items, more)))


def _instant(period: str | None) -> int | None:
    from tidelock.usage.explain import parse_period

    try:
        return None if period is None else parse_period(period)
    except ValueError as error:
        raise SettingsError(f"--period: {error}") from None


def _show_explanation(found: Explanation) -> None:
    group = "" if found.group is None else f", group [bold]{escape(found.group)}[/]"
    what = f"[bold]{escape(found.metric)}[/] of [bold]{escape(found.customer_ref)}[/]{group}"
    terminal.show(f"{what}, {found.period_start} to {found.period_end}, through sequence {found.through_sequence:,}")
    terminal.show(f"[dim]{escape(found.definition)}[/]")
    total = "" if found.total is None else f"[bold green]{_cell(found.total)}[/] {_sum_in_words(found)}\n"
    terminal.show(f"\n{total}{escape(found.why)}\n")
    too_late = "too late" if found.closed_sequence is None else "too late or after the close"
    rows = [
        (f"[green]folded[/], watermark {_cell(found.watermark)}", found.folded),
        (f"[yellow]adjusted[/], {too_late}", found.adjusted),
        (f"[magenta]withdrawn[/], corrected {too_late}", found.withdrawn),
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
            ["sequence#", "occurred at", "part", "counted#", "change#", "total#", ""], map(_event_cells, found.items)
        )
    if found.next is not None and found.items:
        terminal.show("[dim]There are more events; --events COUNT shows them.[/]")


def _sum_in_words(found: Explanation) -> str:
    if not found.adjusted.count + found.withdrawn.count or found.value is None or found.adjustment is None:
        return ""
    sign, size = ("-", found.adjustment[1:]) if found.adjustment.startswith("-") else ("+", found.adjustment)
    return f"= {found.value} on time {sign} {size} {_adjusted(found)}"


def _adjusted(found: Explanation) -> str:
    return "late" if found.closed_sequence is None and not found.corrections.adjusted else "adjusted"


def _event_cells(event: ExplainedEvent) -> tuple[str, ...]:
    colour = _PARTS.get(event.part, "dim")
    numbers = map(_cell, (event.counted, event.change, event.total))
    part = "closed" if event.adjusted_reason == "closed" and event.corrects is None else event.part
    if event.corrects is not None and event.adjusted_reason is not None:
        part += ", closed" if event.adjusted_reason == "closed" else ", late"
    note = ", ".join(filter(None, [*_links(event), _cell(event.message or event.resource_id)]))
    return f"{event.ingress_sequence:,}", event.occurred_at, f"[{colour}]{part}[/]", *numbers, f"[dim]{note}[/]"


def _links(event: ExplainedEvent) -> Iterator[str]:
    if event.corrects is not None:
        yield f"corrects {event.corrects:,}"
    if event.corrected_by is not None:
        yield f"corrected by {event.corrected_by:,}"


def drained_by(definitions: Definitions, name: str | None) -> list[str]:
    """The windows and ordered outputs that a drain of that name, or of all, closes. Raises SettingsError."""
    windows = [window.name for window in definitions.windows.values() if window.eventtime.enabled]
    found = [*windows, *(f"{stream.name}_ordered" for stream in definitions.streams.values() if stream.ordered)]
    if name in found:
        return [name]
    if name in definitions.windows:
        raise SettingsError(
            f"{shown(name)} is a window by arrival: it holds no rows and closes automatically as time passes, so there "
            "is nothing to drain; drain windows with eventtime.enabled and streams with ordered = true"
        )
    if not found:
        raise SettingsError(
            "there is nothing to drain: no window has eventtime.enabled, and no stream has ordered = true"
        )
    if name is not None:
        raise SettingsError(f"there is no event-time window {shown(name)}; available: {', '.join(found)}")
    return found


def _definitions_in_effect(database: Database, settings: Settings) -> Definitions:
    """The definitions of the current tables: those in the settings may not be in effect yet."""
    return asyncio.run(read_catalog(database, settings, "tidelock drain")).definitions


def _cell(value: Any) -> str:
    return "" if value is None else escape(str(value))
