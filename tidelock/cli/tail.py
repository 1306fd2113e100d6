"""Commands that read the ledger: `tail`, `trace`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from tidelock.cli import terminal
from tidelock.cli.flags import (
    After,
    Causality,
    Config,
    Customer,
    Data,
    DatabaseUrl,
    Json,
    Stream,
    Tenant,
    read_settings,
    slice_of,
)
from tidelock.cli.session import found_ledger
from tidelock.errors import SettingsError
from tidelock.model import DEFAULT_TENANT, Recorded
from tidelock.sections import number_of

if TYPE_CHECKING:
    from tidelock.ledger.reader import Caused, Slice
    from tidelock.postgres.database import Database

app = typer.Typer()

_PAGE_EVENTS = 1000
_PAGE_BYTES = 8 * 2**20
_TAIL, _TAIL_MAX = 10, 100_000
_SEQUENCE_WIDTH = 8
_TIME_WIDTH = len("2026-01-31T23:59:59.999999Z")


@app.command(rich_help_panel="Events")
def tail(
    number: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="COUNT",
            help="How many of the last events to show.",
            show_default=f"{_TAIL}; all with --after",
            min=0,
            max=_TAIL_MAX,
        ),
    ] = None,
    after: After = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep running and print events as they are recorded.")
    ] = False,
    tenant: Tenant = None,
    stream: Stream = None,
    customer: Customer = None,
    causality: Causality = None,
    ordered: Annotated[
        str | None,
        typer.Option(
            "--ordered",
            metavar="STREAM",
            help="Show this stream's rows in event-time order instead, each watermark after the rows it released. "
            "Then --after takes a source timestamp; 0 shows all.",
        ),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the last events, or follow the ledger.

    [dim]tidelock tail -f --stream api_calls[/]
    [dim]tidelock tail -n 100 --json | jq .customerRef[/]
    [dim]tidelock tail -f --after 1234 --json[/]
    [dim]tidelock tail -f --ordered trades[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    if number is None and after is None:
        number = _TAIL
    if ordered is not None:
        from tidelock.cli.ordered import tail_ordered

        if stream or customer or causality:
            raise SettingsError("--ordered shows all rows of one stream and can be combined with --tenant only")
        with found_ledger(settings) as database:
            tail_ordered(
                database, settings, ordered, number=number, after=after, tenant=tenant, follow=follow, json=json
            )
        return
    events = slice_of(tenant, stream, customer, causality, after=after)
    with found_ledger(settings) as database:
        asyncio.run(_tail(database, events, number, follow=follow, json=json))


@app.command(rich_help_panel="Events")
def trace(
    key: Annotated[str, typer.Argument(metavar="KEY", help="causalityKey of a workflow run or job.")],
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the events with one causality key, across streams, each below the event that caused it.

    [dim]tidelock trace run-42[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    events = slice_of(tenant, causality=key)
    with found_ledger(settings) as database:
        found = asyncio.run(_trace(database, events))
    if json:
        terminal.write_json(*found)
    elif not found:
        terminal.say(f"No event has the causality key {escape(key)}.")
    else:
        shown = terminal.console()
        shown.print(_causality_tree(key, found), soft_wrap=not shown.is_terminal)


async def _tail(database: Database, events: Slice, number: int | None, *, follow: bool, json: bool) -> None:
    """The last `number` events of the slice, or all of them; then events as they are recorded."""
    from tidelock.ledger.reader import pages, read_events, read_head
    from tidelock.postgres.reconnect import Steady, database_errors

    with database_errors("tail"):
        async with Steady(database, "tidelock tail", patience=database.patience) as steady:
            # The head first: following begins after it.
            head = (await steady.run(read_head)).ingress_sequence
            wanted = replace(events, before=head + 1)
            if number is None:
                async with aclosing(pages(steady, wanted, rows_max=_PAGE_EVENTS, bytes_max=_PAGE_BYTES)) as found:
                    async for page in found:
                        _print(page, json=json)
            elif number:
                last = await steady.run(partial(read_events, events=wanted, limit=number, descending=True))
                _print(last[::-1], json=json)
    if follow:
        await _follow(database, events, max(head, events.after or 0), json=json)


async def _follow(database: Database, events: Slice, after: int, *, json: bool) -> None:
    from tidelock.ledger.feed import Feed
    from tidelock.ledger.routing import Filter
    from tidelock.postgres.pool import Connections

    decoder = msgspec.json.Decoder(Recorded)
    connections = Connections(database, size_max=2, name="tidelock tail")
    feed = Feed(database, connections, queue_events_max=_PAGE_EVENTS)
    await feed.start()
    try:
        only = Filter(*(getattr(events, name) for name in Filter._fields))
        async for frames in feed.follow(only, after):
            if json:
                terminal.write(frame.text.encode() for frame in frames)
            else:
                _print([decoder.decode(frame.text) for frame in frames], json=False)
    finally:
        await feed.close()
        await connections.close()


def _print(events: Sequence[Recorded], *, json: bool) -> None:
    if json:
        terminal.write_json(*events)
        return
    shown = terminal.console()
    for event in events:
        terminal.show_line(shown, _event_line(event))


async def _trace(database: Database, events: Slice) -> list[Caused]:
    from tidelock.ledger.reader import read_caused
    from tidelock.postgres.reconnect import Steady, database_errors

    found: list[Caused] = []
    with database_errors("trace"):
        async with Steady(database, "tidelock trace", patience=database.patience) as steady:
            more = True
            while more:
                read = partial(read_caused, events=events, rows_max=_PAGE_EVENTS, bytes_max=_PAGE_BYTES)
                page = await steady.run(read)
                found += page.events
                more = page.more
                if more:
                    events = replace(events, after=page.events[-1].ingress_sequence)
    return found


def _event_line(event: Recorded) -> Text:
    """Sequence, time, customer, stream and contents; absent fields take no space."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{event.ingress_sequence:>{_SEQUENCE_WIDTH}}", style="bold")
    line.append(f"  {event.occurred_at:<{_TIME_WIDTH}}", style="dim")
    if event.tenant_id != DEFAULT_TENANT:
        line.append(f"  {event.tenant_id}", style="magenta")
    line.append(f"  {event.stream}", style="cyan")
    for value in (event.customer_ref, event.resource_id):
        if value is not None:
            line.append(f"  {value}")
    if event.op == "delete":
        line.append("  delete", style="red")
    if event.target_sequence is not None:
        line.append(f"  {event.op} of {event.target_sequence}", style="red" if event.op == "void" else "yellow")
    if event.reason is not None:
        line.append(f"  {event.reason}", style="italic")
    if event.quantity is not None:
        line.append(f"  {event.quantity}", style="green")
    data = bytes(event.data).decode()
    if event.error is not msgspec.UNSET:
        line.append(f"  {event.error.code}: {event.error.message}", style="red")
    if data != "null":
        line.append(f"  {data}", style="dim")
    return line


def _causality_tree(key: str, events: Sequence[Caused]) -> Tree:
    """Each event below the one that caused it, siblings in ledger order."""
    root = Tree(Text(f"{key}: {number_of(len(events), 'event')}", style="bold"))
    branches: dict[int, Tree] = {}
    for event in events:
        line = _event_line(event)
        line = line[_SEQUENCE_WIDTH - len(str(event.ingress_sequence)) :]
        parent = branches.get(event.parent) if event.parent is not None else None
        if parent is None and event.parent is not None:
            line.append(f"  caused by {event.parent}", style="yellow")
        branches[event.ingress_sequence] = (parent or root).add(line)
    return root
