"""Commands that read the ledger: `tail`, `trace`, `status`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.errors import SettingsError
from tidelock.ops import terminal
from tidelock.ops.commands.ordering import tail_ordered
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, read_settings
from tidelock.ops.commands.slices import After, Causality, Customer, Stream, Tenant, slice_of

if TYPE_CHECKING:
    from tidelock.ledger.reader import Caused, Slice
    from tidelock.model import Recorded
    from tidelock.postgres.database import Database

app = typer.Typer()

_PAGE_EVENTS = 1000
_PAGE_BYTES = 8 * 2**20
_TAIL, _TAIL_MAX = 10, 100_000


@app.command(rich_help_panel="Events")
def tail(
    number: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="COUNT",
            help="How many of the last events.",
            show_default=f"{_TAIL}; with --after all",
            min=0,
            max=_TAIL_MAX,
        ),
    ] = None,
    after: After = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is recorded from now on.")] = False,
    tenant: Tenant = None,
    stream: Stream = None,
    customer: Customer = None,
    causality: Causality = None,
    ordered: Annotated[
        str | None,
        typer.Option(
            "--ordered",
            metavar="STREAM",
            help="Instead the rows of this stream in the order of their event time, with its watermark after the rows "
            "that it released. --after is a source timestamp then; 0 shows all.",
        ),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the last events, and follow the ledger.

    [dim]tidelock tail -f --stream api_calls[/]
    [dim]tidelock tail -n 100 --json | jq .customerRef[/]
    [dim]tidelock tail -f --after 1234 --json[/]
    [dim]tidelock tail -f --ordered trades[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    if number is None and after is None:
        number = _TAIL
    if ordered is not None:
        if stream or customer or causality:
            raise SettingsError("--ordered shows all rows of one stream: only --tenant goes with it")
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
    key: Annotated[str, typer.Argument(metavar="KEY", help="A causalityKey: of a workflow run, a job.")],
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the events of one causality key, across streams, each below the one that caused it.

    [dim]tidelock trace run-42[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    events = slice_of(tenant, None, None, key)
    with found_ledger(settings) as database:
        found = asyncio.run(_trace(database, events))
    if json:
        terminal.write_json(*found)
    elif not found:
        terminal.say(f"No event has the causality key {escape(key)}.")
    else:
        from tidelock.ops.event_lines import causality_tree

        shown = terminal.console()
        shown.print(causality_tree(key, found), soft_wrap=not shown.is_terminal)


@app.command(rich_help_panel="Look after")
def status(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show where the ledger stands: head, readers, windows, partitions, keys, salts, anchor.

    [dim]tidelock status --json | jq .head.ingressSequence[/]
    """
    from tidelock.ops.status import read_status

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        found = read_status(database, settings)
    if json:
        terminal.write_json(found)
    else:
        from tidelock.ops.status_lines import show_status

        show_status(found)


async def _tail(database: Database, events: Slice, number: int | None, *, follow: bool, json: bool) -> None:
    """The last `number` events of the slice, or all of them; then what is recorded from then on."""
    from tidelock.ledger.reader import pages, read_events, read_head
    from tidelock.postgres.reconnect import Steady, database_errors

    with database_errors("tail"):
        async with Steady(database, "tidelock tail", patience=database.patience) as steady:
            # The head first: what comes after it is what following begins with.
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
    import msgspec

    from tidelock.ledger.feed import Feed
    from tidelock.ledger.routing import Filter
    from tidelock.model import Recorded
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
    from tidelock.ops.event_lines import print_event

    shown = terminal.console()
    for event in events:
        print_event(shown, event)


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
