"""Commands for triggers: `triggers list`, `create`, `delete`, `enable`, `disable`, `test` and deliveries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tidelock.errors import Difference, SettingsError, Unreachable
from tidelock.ops import terminal
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, made_ledger, read_settings
from tidelock.ops.commands.slices import Tenant

if TYPE_CHECKING:
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings
    from tidelock.triggers.outbox import Status

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Triggers: who is told when a row enters or leaves a condition.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the trigger.", show_default=False)]

_LIST_MAX = 100_000


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
        found = asyncio.run(_list(settings, database, tenant))
    if json:
        terminal.write_json(*found)
    elif found:
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
                for each in found
            ],
        )
    else:
        terminal.say("No triggers. `tidelock triggers create` makes one.")


@app.command()
def create(
    name: Name,
    table: Annotated[str, typer.Option(metavar="TABLE", help="Such as counters, a window or a keyed stream.")],
    match: Annotated[str, typer.Option(metavar="JSON", help="Filter under which a row enters.")],
    webhook: Annotated[str, typer.Option(metavar="URL", help="Who is told.")],
    unmatch: Annotated[
        str | None, typer.Option(metavar="JSON", help="Filter under which it leaves.", show_default="match is not true")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="WHSEC", help="Signs; may be repeated, newest first.", show_default="made"),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Whose rows.")] = None,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Tell of rows that match already.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Make it, and let it wait to be enabled.")] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make a trigger. It is recorded in the ledger, and sees what changes after that.

    [dim]tidelock triggers create big --table trades --match '{"price": {"_gt": 9}}' --webhook https://example.com/[/]
    """
    import msgspec

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
        made = asyncio.run(_create(settings, database, draft))
    if json:
        terminal.write_json(made)
        return
    terminal.show(f"[bold]{escape(name)}[/] is made, as of sequence {made['createdSequence']:,}.")
    for text in made.get("secrets", ()):
        terminal.show(f"[bold]{text}[/]")
        terminal.say("Keep the secret now, receivers verify by it: it cannot be shown again.")


@app.command()
def delete(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """End a trigger. What it has still to tell is not told any more.

    [dim]tidelock triggers delete big[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        asyncio.run(_delete(settings, database, name))
    _done(name, "deleted", json=json)


@app.command()
def enable(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Let a trigger see changes from now on, as if it was made now.

    [dim]tidelock triggers enable big[/]
    """
    _switch(read_settings(config, data=data, database_url=database_url), name, enabled=True, json=json)


@app.command()
def disable(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Let a trigger see nothing and tell nothing until it is enabled.

    [dim]tidelock triggers disable big[/]
    """
    _switch(read_settings(config, data=data, database_url=database_url), name, enabled=False, json=json)


@app.command("test")
def send_test(
    name: Name, config: Config = None, data: Data = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Send one sample, whose event_type is TEST, and show what the receiver answers.

    Exits with 1 when it is not taken, with 3 when nobody answers.

    [dim]tidelock triggers test big[/]
    """
    from tidelock.ops.trigger_work import send_sample

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
        raise Unreachable(f"{sample.webhook} did not answer: {result.response}")
    if result.outcome != "delivered":
        raise Difference(f"{sample.webhook} did not take it: {result.outcome} ({result.status})")


@app.command()
def deliveries(
    name: Name,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="pending, delivered or dead.")] = None,
    number: Annotated[int, typer.Option("-n", metavar="COUNT", help="The newest so many.", min=1, max=_LIST_MAX)] = 100,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what became of a trigger's webhooks, the newest first.

    [dim]tidelock triggers deliveries big --status dead[/]
    """
    from tidelock.ops.triggers import delivery_form
    from tidelock.triggers.outbox import STATUSES

    settings = read_settings(config, data=data, database_url=database_url)
    wanted = next((known for known in STATUSES if known == status), None)
    if status is not None and wanted is None:
        raise SettingsError(f"--status is one of: {', '.join(STATUSES)}")
    with found_ledger(settings) as database:
        found = [delivery_form(row) for row in asyncio.run(_deliveries(settings, database, name, wanted, number))]
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
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="Of the webhook.", show_default=False)],
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show every attempt to deliver one webhook, the newest first, with what the receiver answered.

    `triggers deliveries` shows the ids.

    [dim]tidelock triggers attempts big 0f9d1c22a1f04d5e8b3c6a7d9e8f7a6b[/]
    """
    from tidelock.ops.triggers import attempt_form

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        found = [attempt_form(each) for each in asyncio.run(_attempts(settings, database, name, event_id))]
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
        typer.Argument(metavar="[EVENT_ID]...", help="Which; none: all that are dead.", show_default=False),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Deliver webhooks again, with the same ids: those that are dead, or those named.

    [dim]tidelock triggers redeliver big[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        queued = asyncio.run(_redeliver(settings, database, name, event_id or None))
    if json:
        terminal.write_json({"name": name, "queued": queued})
    else:
        terminal.show(f"{queued:,} webhooks of {escape(name)} are queued.")


def _switch(settings: Settings, name: str, *, enabled: bool, json: bool) -> None:
    from tidelock.triggers.drafts import Patch

    with found_ledger(settings) as database:
        asyncio.run(_change(settings, database, name, Patch(enabled=enabled)))
    _done(name, "enabled" if enabled else "disabled", json=json)


def _done(name: str, what: str, *, json: bool) -> None:
    if json:
        terminal.write_json({"name": name, what: True})
    else:
        terminal.show(f"{escape(name)} is {what}.")


async def _list(settings: Settings, database: Database, tenant: str | None) -> list[dict[str, Any]]:
    from tidelock.ops.trigger_work import opened_desk

    async with opened_desk(settings, database) as desk:
        return [found.form() for found in await desk.page(tenant, _LIST_MAX)]


async def _create(settings: Settings, database: Database, draft: Any) -> dict[str, Any]:
    from tidelock.ops.trigger_work import opened_desk

    async with opened_desk(settings, database) as desk:
        return await desk.make(draft, draft.tenant_id)


async def _delete(settings: Settings, database: Database, name: str) -> None:
    from tidelock.ops.trigger_work import opened_desk

    async with opened_desk(settings, database) as desk:
        await desk.end(name, None)


async def _change(settings: Settings, database: Database, name: str, patch: Any) -> None:
    from tidelock.ops.trigger_work import opened_desk

    async with opened_desk(settings, database) as desk:
        await desk.change(name, patch, None)


async def _deliveries(
    settings: Settings, database: Database, name: str, status: Status | None, number: int
) -> list[Any]:
    from tidelock.ops.trigger_work import opened_desk

    async with opened_desk(settings, database) as desk:
        return await desk.deliveries(name, None, status=status, limit=number)


async def _attempts(settings: Settings, database: Database, name: str, event_id: str) -> list[Any]:
    from tidelock.ops.trigger_work import opened_desk

    async with opened_desk(settings, database) as desk:
        return (await desk.attempts(name, None, event_id))[1]


async def _redeliver(settings: Settings, database: Database, name: str, event_ids: list[str] | None) -> int:
    from tidelock.ops.trigger_work import opened_desk

    async with opened_desk(settings, database) as desk:
        return await desk.redeliver(name, None, event_ids)
