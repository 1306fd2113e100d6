"""Commands about batches: `batches`, `revert`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, Tenant, check_texts, read_settings
from tidelock.cli.session import asked, found_ledger, set_on_signals
from tidelock.errors import SettingsError
from tidelock.instants import SECOND
from tidelock.model import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import AsyncConnection

    from tidelock.postgres.database import Database
    from tidelock.settings import Settings
    from tidelock.sources.reverting import RevertResult
    from tidelock.usage.batches import Batch, Left, WantedRevert
    from tidelock.usage.previews import CounterPreview, RevertPreview

app = typer.Typer()

_PAGE = 1_000
_SHOWN_MAX = 1_000
_LEFT_SHOWN = 10
#: a preview of a large batch reads much, and can be stopped
_PREVIEW_TIMEOUT_NS = 24 * 3600 * SECOND
#: why events stay, for people
_LEFT = {
    "no_key": "without a key, so that no event can name them",
    "keyed_stream": "of a keyed stream, which its next upsert or delete corrects",
    "amended": "amended by an event of another batch",
    "correction": "corrections of events of another batch",
    "rejected": "whose voids were rejected",
}


@app.command(rich_help_panel="Events")
def batches(
    number: Annotated[
        int, typer.Option("-n", metavar="COUNT", help="How many of the latest batches to show.", min=1)
    ] = 100,
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """List batches, the latest first: events with the same batchId, such as those of an import.

    [dim]tidelock batches[/]
    [dim]tidelock batches --tenant acme --json | jq .batchId[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    check_texts(tenant=tenant)
    with found_ledger(settings) as database:
        found = asked(database, "tidelock batches", lambda connection: _batches(connection, tenant, number))
    if json:
        terminal.write_json(*found)
    elif not found:
        terminal.say("No event names a batch; `tidelock import` names one for each file.")
    else:
        names = ["batch", "tenant", "events#", "corrected#", "first#", "last#", "from", "to"]
        terminal.show_table(names, map(_row, found))


@app.command(rich_help_panel="Events")
def revert(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="The batch, as `tidelock batches` lists it.")],
    preview: Annotated[
        bool, typer.Option("--preview", help="Only show what each counter would become; record nothing.")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Why; recorded with every void.", show_default="names the batch"),
    ] = None,
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Revert a batch: void each of its events once.

    You can stop it at any time and run it again: events that are void already count as duplicates. Where the batch
    amended one of its own events, the amendment is voided. The command lists what it cannot void, and then exits with
    1: events without a key, events of a keyed stream, events that another batch amended, and corrections of events
    outside the batch. Where several tenants have a batch of this name, pass --tenant.

    [dim]tidelock revert calls.csv:3f2a9c01d2e4 --preview[/]
    [dim]tidelock revert calls.csv:3f2a9c01d2e4 --reason "wrong file"[/]
    """
    from tidelock.ingest.wire import NAME_CHARACTERS_MAX
    from tidelock.postgres.reconnect import database_errors
    from tidelock.usage.batches import WantedRevert

    settings = read_settings(config, data=data, database_url=database_url)
    check_texts(batch=batch, tenant=tenant, reason=reason)
    if reason is not None and not 0 < len(reason) <= NAME_CHARACTERS_MAX:
        raise SettingsError(f"--reason has 1 to {NAME_CHARACTERS_MAX} characters")
    wanted = WantedRevert(batch, tenant, reason)
    started = time.monotonic()
    with found_ledger(settings) as database:
        if preview:
            _preview(settings, database, wanted, json=json)
            return
        with database_errors("revert"):
            result, stopped = asyncio.run(_revert(settings, database, wanted))
    if json:
        terminal.write_json(_as_json(result, batch))
    else:
        _show(result, batch, time.monotonic() - started)
    raise typer.Exit(stopped or (1 if result.left_count else 0))


async def _batches(connection: AsyncConnection[Any], tenant: str | None, number: int) -> list[Batch]:
    from tidelock.usage.batches import read_batches

    found: list[Batch] = []
    before: int | None = None
    while len(found) < number:
        page = await read_batches(connection, tenant, before=before, limit=min(_PAGE, number))
        found += page.items
        before = page.before
        if before is None:
            break
    return found[:number]


def _row(batch: Batch) -> tuple[str, ...]:
    return (
        escape(batch.batch_id),
        escape(batch.tenant_id),
        f"{batch.events:,}",
        f"{batch.corrected:,}",
        f"{batch.first_sequence:,}",
        f"{batch.last_sequence:,}",
        batch.occurred_from,
        batch.occurred_to,
    )


def _preview(settings: Settings, database: Database, wanted: WantedRevert, *, json: bool) -> None:
    """Show what a revert would do. Exit 1 where it would leave something, as the revert would."""
    from tidelock.usage.previews import preview_revert
    from tidelock.views.catalog import CatalogReader

    async def ask(connection: AsyncConnection[Any]) -> RevertPreview:
        catalog = CatalogReader(settings.definitions)
        return await preview_revert(
            connection, catalog, settings.definitions, wanted, counters_max=None, timeout_ns=_PREVIEW_TIMEOUT_NS
        )

    found = asked(database, "tidelock revert", ask)
    if json:
        terminal.write_json(found)
    else:
        _show_preview(found)
    raise typer.Exit(1 if found.left_count else 0)


def _show_preview(found: RevertPreview) -> None:
    names = ["meter", "tenant", "customer", "period", "events#", "value#", "after#", "total#", "after#"]
    if found.counters:
        terminal.show_table(names, map(_counter_row, found.counters[:_SHOWN_MAX]))
    if len(found.counters) > _SHOWN_MAX:
        more = len(found.counters) - _SHOWN_MAX
        terminal.say(f"[dim]and {more:,} more counters; --json shows all of them[/]")
    void = f", void already: {found.duplicates:,}" if found.duplicates else ""
    terminal.show(
        f"[bold]{found.voids:,}[/] of {found.events:,} events would be voided{void}, as of sequence "
        f"{found.through_sequence:,}; nothing was recorded."
    )
    _show_left(found.left, found.left_count)


def _counter_row(counter: CounterPreview) -> tuple[str, ...]:
    return (
        escape(counter.metric),
        escape(counter.tenant_id) if counter.tenant_id != DEFAULT_TENANT else "[dim]default[/]",
        escape(counter.customer_ref),
        counter.period_start,
        f"{counter.events:,}",
        *(
            "[dim]null[/]" if figure is None else figure
            for figure in (counter.value, counter.value_after, counter.total, counter.total_after)
        ),
    )


async def _revert(settings: Settings, database: Database, wanted: WantedRevert) -> tuple[RevertResult, int]:
    from tidelock.ledger.opening import opened_sequencer
    from tidelock.postgres.reconnect import Steady
    from tidelock.sources.reverting import revert_batch
    from tidelock.sources.sender import Sender

    async with (
        opened_sequencer(settings, database) as sequencer,
        Steady(database, "tidelock revert", patience=database.patience) as steady,
    ):
        sender = Sender(sequencer, settings, streams_open=True)
        stopped = set_on_signals(sender.stop)
        with terminal.Work(f"reverting {escape(wanted.batch_id)}", "events") as work:
            result = await revert_batch(steady, sender, settings.definitions, wanted, work.told)
    return result, 0 if result.finished else stopped[0]


def _as_json(result: RevertResult, batch: str) -> dict[str, object]:
    return {
        "batchId": batch,
        "voided": result.voided,
        "duplicates": result.duplicates,
        "leftCount": result.left_count,
        "left": result.left,
        "finished": result.finished,
    }


def _show(result: RevertResult, batch: str, took_s: float) -> None:
    counts = [("voided", result.voided, "green"), ("void already", result.duplicates, "yellow")]
    counts += [("left", result.left_count, "red")]
    shown = ", ".join(f"[{colour if count else 'dim'}]{count:,} {name}[/]" for name, count, colour in counts)
    terminal.show(f"{result.done:,} events of {escape(batch)} in {took_s:.1f} s: {shown}")
    _show_left(result.left, result.left_count)
    if not result.finished:
        terminal.say(f"Stopped after {result.done:,} events. Run the command again to continue.")


def _show_left(left: Sequence[Left], count: int) -> None:
    """What stays in the meters: why, and the first of them."""
    for code, number in Counter(each.code for each in left).most_common():
        more = "at least " if count > len(left) else ""
        terminal.show(f"  [red]{more}{number:,} left[/]: {_LEFT[code]}")
    for each in left[:_LEFT_SHOWN]:
        terminal.show(f"  sequence {each.ingress_sequence}  [red]{each.code}[/]  {escape(each.message)}")
    if count > _LEFT_SHOWN:
        terminal.show(f"  [dim]and {count - min(_LEFT_SHOWN, len(left)):,} more; --json shows the first 1,000[/]")
