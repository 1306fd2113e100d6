"""Commands for triggers: `triggers list`, `create`, `delete`, `enable`, `test`, deliveries, `replay` and others."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, Tenant, read_settings
from tidelock.cli.session import found_ledger, made_ledger, stop_on_signals, teller
from tidelock.errors import Difference, SettingsError, Unreachable
from tidelock.sections import number_of

if TYPE_CHECKING:
    from tidelock.fold.redefine.refolding import Refolding
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings
    from tidelock.triggers.admin import TriggerAdmin
    from tidelock.triggers.outbox import Transition

Answer = TypeVar("Answer")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Triggers: send a webhook when a row enters or leaves a condition.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the trigger.", show_default=False)]

_LIST_MAX = 100_000
_SEQUENCE_MAX = 2**63 - 2
# Reconstructed webhooks are shown and queued this many at a time: there may be millions.
_REPLAYED = 1_000


@app.command("list")
def list_all(
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show every trigger.

    [dim]tidelock triggers list --json | jq .name[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        found = _with_admin(settings, database, lambda admin: admin.page(tenant, _LIST_MAX))
    forms = [each.form() for each in found]
    if json:
        terminal.write_json(*forms)
    elif forms:
        terminal.show_table(
            ["name", "tenant", "table", "match", "unmatch", "webhook", "enabled", "since#"],
            [
                (
                    escape(each["name"]),
                    escape(each["tenantId"]),
                    escape(each["table"]),
                    escape(bytes(each["match"]).decode()),
                    "" if each["unmatch"] is None else escape(bytes(each["unmatch"]).decode()),
                    escape(each["webhook"]),
                    "yes" if each["enabled"] else "[red]no[/]",
                    f"{each['createdSequence']:,}",
                )
                for each in forms
            ],
        )
    else:
        terminal.say("No triggers. Create one with `tidelock triggers create`.")


@app.command()
def create(
    name: Name,
    table: Annotated[
        str, typer.Option(metavar="TABLE", help="Table to watch, such as counters, a window or a keyed stream.")
    ],
    match: Annotated[
        str, typer.Option(metavar="JSON", help="Filter; a webhook is sent when a row starts to match it.")
    ],
    webhook: Annotated[str, typer.Option(metavar="URL", help="URL that webhooks are posted to.")],
    unmatch: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Filter; a row that has matched leaves when this becomes true.",
            show_default="match is no longer true",
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="WHSEC", help="Signing secret; may be repeated, newest first.", show_default="generated"),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Tenant whose rows it sees.")] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Also send a webhook for each row that already matches.")
    ] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it disabled.")] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Create a trigger. It is recorded in the ledger and acts only on later changes.

    [dim]tidelock triggers create big --table trades --match '{"price": {"_gt": 9}}' --webhook https://example.com/[/]
    """
    from tidelock.triggers.drafts import Draft

    settings = read_settings(config, data=data, database_url=database_url)
    draft = Draft(
        name=name,
        table=table,
        match=msgspec.Raw(match.encode()),
        webhook=webhook,
        unmatch=msgspec.Raw((unmatch or "").encode()),
        enabled=not disabled,
        snapshot=snapshot,
        tenant_id=tenant,
        secrets=secret or None,
    )
    with made_ledger(settings) as database:
        made = _with_admin(settings, database, lambda admin: admin.make(draft, draft.tenant_id))
    if json:
        terminal.write_json(made)
        return
    terminal.show(f"[bold]{escape(name)}[/] created at sequence {made['createdSequence']:,}.")
    for text in made.get("secrets", ()):
        terminal.show(f"[bold]{text}[/]")
        terminal.say("Store the secret now; receivers verify signatures with it, and it cannot be shown again.")


@app.command()
def delete(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Delete a trigger. Webhooks not sent yet are dropped.

    [dim]tidelock triggers delete big[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        _with_admin(settings, database, lambda admin: admin.end(name, None))
    _done(name, "deleted", json=json)


@app.command()
def enable(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Enable a trigger. It acts on changes from now on, like a newly created trigger.

    [dim]tidelock triggers enable big[/]
    """
    _switch(read_settings(config, data=data, database_url=database_url), name, enabled=True, json=json)


@app.command()
def disable(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Disable a trigger. It sees no changes and sends nothing until it is enabled again.

    [dim]tidelock triggers disable big[/]
    """
    _switch(read_settings(config, data=data, database_url=database_url), name, enabled=False, json=json)


@app.command("test")
def send_test(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Send a sample webhook with event_type TEST, and show the receiver's response.

    Exits with 1 if the receiver does not accept it, with 3 if it does not respond.

    [dim]tidelock triggers test big[/]
    """
    from tidelock.triggers.admin import send_sample

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        sample = asyncio.run(send_sample(settings, database, name))
    result = sample.result
    if json:
        told = {"eventId": sample.event_id, "webhook": sample.webhook, "outcome": result.outcome}
        terminal.write_json(
            {**told, "httpStatus": result.status, "response": result.response, "seconds": round(result.seconds, 3)}
        )
    else:
        status = "" if result.status is None else f" ({result.status})"
        terminal.show(f"{escape(sample.webhook)}: {result.outcome}{status} in {result.seconds:.3f} s")
        if result.response:
            terminal.show(escape(result.response))
    if result.status is None:
        raise Unreachable(f"{sample.webhook} did not respond: {result.response}")
    if result.outcome != "delivered":
        raise Difference(f"{sample.webhook} did not accept it: {result.outcome} ({result.status})")


@app.command()
def deliveries(
    name: Name,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="pending, delivered or dead.")] = None,
    number: Annotated[
        int, typer.Option("-n", metavar="COUNT", help="Show this many, newest first.", min=1, max=_LIST_MAX)
    ] = 100,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show a trigger's deliveries, newest first.

    [dim]tidelock triggers deliveries big --status dead[/]
    """
    from tidelock.api.triggers import delivery_form
    from tidelock.triggers.outbox import STATUSES

    settings = read_settings(config, data=data, database_url=database_url)
    wanted = next((known for known in STATUSES if known == status), None)
    if status is not None and wanted is None:
        raise SettingsError(f"--status is one of: {', '.join(STATUSES)}")
    with found_ledger(settings) as database:
        rows = _with_admin(settings, database, lambda admin: admin.deliveries(name, None, status=wanted, limit=number))
    found = [delivery_form(row) for row in rows]
    if json:
        terminal.write_json(*found)
        return
    terminal.show_table(
        ["event id", "type", "key", "status", "attempts#", "outcome", "http", "queued"],
        [
            (
                each["eventId"], each["eventType"], escape(each["key"]), each["status"], str(each["attempts"]),
                each["outcome"] or "", str(each["httpStatus"] or ""), each["queuedAt"],
            )
            for each in found
        ],
    )  # fmt: skip


@app.command()
def attempts(
    name: Name,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="ID of the event.", show_default=False)],
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show every attempt to deliver one webhook, newest first, with the receiver's response.

    `triggers deliveries` shows the event IDs.

    [dim]tidelock triggers attempts big 0f9d1c22a1f04d5e8b3c6a7d9e8f7a6b[/]
    """
    from tidelock.api.triggers import attempt_form

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        _, made = _with_admin(settings, database, lambda admin: admin.attempts(name, None, event_id))
    found = [attempt_form(each) for each in made]
    if json:
        terminal.write_json(*found)
        return
    terminal.show_table(
        ["number#", "sent", "seconds#", "outcome", "http", "response"],
        [
            (
                str(each["number"]), each["sentAt"], f"{each['seconds']:.3f}", each["outcome"],
                str(each["httpStatus"] or ""), escape(each["response"]),
            )
            for each in found
        ],
    )  # fmt: skip


@app.command()
def redeliver(
    name: Name,
    event_id: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EVENT_ID]...", help="Event IDs; default: all dead webhooks.", show_default=False),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Deliver dead or named webhooks again, with the same IDs.

    [dim]tidelock triggers redeliver big[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        queued = _with_admin(settings, database, lambda admin: admin.redeliver(name, None, event_id or None))
    if json:
        terminal.write_json({"name": name, "queued": queued})
    else:
        terminal.show(f"{number_of(queued, 'webhook')} of {escape(name)} queued.")


@app.command()
def replay(
    name: Name,
    first: Annotated[int, typer.Option("--from", metavar="SEQUENCE", help="First event of the range.", min=1)],
    last: Annotated[int, typer.Option("--to", metavar="SEQUENCE", help="Last event of the range.", max=_SEQUENCE_MAX)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, without sending.")] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Reconstruct the webhooks of a trigger for a range of the ledger, and send them again with the same IDs.

    They are reconstructed from the changes of its table; if those have expired, the ledger is folded again, on Spark.

    [dim]tidelock triggers replay big --from 1 --to 5000 --dry-run[/]
    """
    from tidelock.triggers import admin

    settings = read_settings(config, data=data, database_url=database_url)
    if last < first:
        raise SettingsError("--to is before --from")
    shown = queued = 0
    refolds = _Refolds(settings)
    with found_ledger(settings) as database:
        evaluated, folded = admin.evaluated_through(database)
        end = min(last, folded if dry_run else evaluated)
        if end < last:
            terminal.say(f"Through sequence {end:,}; later events have not been evaluated yet.")
        # Always closed, which drops the refolded tables.
        with closing(admin.replay(database, name, first, end, refolds.fold)) as found:
            while first <= end and not refolds.stop.is_set() and (some := list(islice(found, _REPLAYED))):
                _show_transitions(name, some, json=json)
                shown += len(some)
                queued += 0 if dry_run else asyncio.run(admin.send_again(database, name, some))
    if refolds.stop.is_set():
        terminal.say(f"stopped; {shown:,} found, {queued:,} of them queued")
        raise typer.Exit(128 + signal.SIGINT)
    if not shown and not json:
        terminal.say(f"{escape(name)} sent nothing in that range.")
    if not dry_run:
        terminal.say(f"{queued:,} queued for redelivery; webhooks already waiting are not queued twice.")


def _switch(settings: Settings, name: str, *, enabled: bool, json: bool) -> None:
    from tidelock.triggers.drafts import Patch

    with found_ledger(settings) as database:
        _with_admin(settings, database, lambda admin: admin.change(name, Patch(enabled=enabled), None))
    _done(name, "enabled" if enabled else "disabled", json=json)


def _done(name: str, what: str, *, json: bool) -> None:
    if json:
        terminal.write_json({"name": name, what: True})
    else:
        terminal.show(f"{escape(name)} is {what}.")


def _with_admin(settings: Settings, database: Database, work: Callable[[TriggerAdmin], Awaitable[Answer]]) -> Answer:
    """Run something through the same administration as the API's handlers."""
    from tidelock.triggers.admin import opened_admin

    async def run() -> Answer:
        async with opened_admin(settings, database) as admin:
            return await work(admin)

    return asyncio.run(run())


class _Refolds:
    """Folds the ledger again for a replay, with a progress bar. From then on signals stop the replay."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.stop = threading.Event()

    def fold(self, refolding: Refolding) -> bool:
        from tidelock import app as composition

        self.stop = stop_on_signals()
        tell = teller("replay", False)
        tell("the changes needed have expired (setting changes_retention); folding the ledger again")
        with (
            terminal.Work("folding again", "events") as work,
            composition.started_spark(self._settings, tell) as spark,
        ):
            return refolding.fold(
                spark,
                range_events_max=self._settings.fold.range_events_max,
                stop=self.stop,
                progress=lambda done, end: work.told(done, done / end if end else 1.0),
            )


def _show_transitions(name: str, found: Iterable[Transition], *, json: bool) -> None:
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
