"""The command `triggers replay`: what a trigger has told, once more."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.errors import SettingsError
from tidelock.ops import terminal
from tidelock.ops.commands import folding
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, composition, found_ledger, read_settings
from tidelock.ops.commands.triggers import Name

if TYPE_CHECKING:
    from tidelock.fold.redefine.refolding import Refolding
    from tidelock.settings import Settings
    from tidelock.triggers.outbox import Transition

app = typer.Typer()

_SEQUENCE_MAX = 2**63 - 2
# Events found again that are shown and queued at a time: there may be millions.
_REPLAYED = 1_000


@app.command()
def replay(
    context: typer.Context,
    name: Name,
    first: Annotated[int, typer.Option("--from", metavar="SEQUENCE", help="First event of the range.", min=1)],
    last: Annotated[int, typer.Option("--to", metavar="SEQUENCE", help="Last event of the range.", max=_SEQUENCE_MAX)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what was told, and send nothing.")] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Find again what a trigger told over a range of the ledger, and send it again, with the same ids.

    It is found from the changes of its table; where these are not kept any more, the ledger is folded anew, on Spark.

    [dim]tidelock triggers replay big --from 1 --to 5000 --dry-run[/]
    """
    from tidelock.ops import trigger_work

    settings = read_settings(config, data=data, database_url=database_url)
    if last < first:
        raise SettingsError("--to lies before --from")
    shown = queued = 0
    refolds = _Refolds(context, settings)
    with found_ledger(settings) as database:
        evaluated, folded = trigger_work.evaluated_through(database)
        end = min(last, folded if dry_run else evaluated)
        if end < last:
            terminal.say(f"Through sequence {end:,}: what comes after it is yet to be told.")
        # Closed in any case: what was folded anew is removed then.
        with closing(trigger_work.replay(database, name, first, end, refolds.fold)) as found:
            while first <= end and not refolds.stop.is_set() and (some := list(islice(found, _REPLAYED))):
                _show(name, some, json=json)
                shown += len(some)
                queued += 0 if dry_run else asyncio.run(trigger_work.send_again(database, name, some))
    if refolds.stop.is_set():
        terminal.say(f"stopped; {shown:,} were found, {queued:,} of them queued")
        raise typer.Exit(128 + signal.SIGINT)
    if not shown and not json:
        terminal.say(f"{escape(name)} told nothing there.")
    if not dry_run:
        terminal.say(f"{queued:,} are queued to be delivered again; those that wait already are not queued twice.")


class _Refolds:
    """Folds the ledger anew for a replay, with a bar to look at meanwhile. Signals stop the replay from then on."""

    def __init__(self, context: typer.Context, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self.stop = threading.Event()

    def fold(self, refolding: Refolding) -> bool:
        self.stop = folding.stop_on_signals()
        tell = folding.teller("replay", False)
        tell("changes that it takes are not kept any more (setting changes_retention); the ledger is folded anew")
        with (
            terminal.Work("folding anew", "events") as work,
            composition(self._context).started_spark(self._settings, tell) as spark,
        ):
            return refolding.fold(
                spark,
                range_events_max=self._settings.fold.range_events_max,
                stop=self.stop,
                progress=lambda done, end: work.told(done, done / end if end else 1.0),
            )


def _show(name: str, found: Iterable[Transition], *, json: bool) -> None:
    import time

    from tidelock.triggers.payloads import payload

    if json:
        terminal.write(
            payload(
                event_id=each.event_id, event_type=each.event_type, trigger=name, data=each.data,
                source_timestamp=each.source_timestamp, sent_at_ns=time.time_ns(),
            )
            for each in found
        )  # fmt: skip
        return
    for each in found:
        line = f"{each.source_timestamp} {each.event_type:<7} {each.event_id} {each.key} {each.data.decode()}"
        terminal.show(escape(line))
