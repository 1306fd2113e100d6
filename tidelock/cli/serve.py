"""Commands that run the ledger: `up`, `demo`, `serve`, `migrate`."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.example import example
from tidelock.cli.flags import (
    Config,
    Data,
    DatabaseUrl,
    Host,
    Json,
    LogLevel,
    Port,
    Told,
    read_settings,
    setting,
)
from tidelock.cli.session import log_to_stderr, made_ledger, tell_programs
from tidelock.durations import parse_duration
from tidelock.errors import SettingsError
from tidelock.instants import SECOND
from tidelock.settings import TABLE, Settings

app = typer.Typer()

StreamsOpen = Annotated[str | None, setting("streams_open", "true|false")]
AcceptLostTail = Annotated[
    bool,
    typer.Option(
        "--accept-lost-tail",
        help="If the anchor file proves that the ledger's last events are gone, record the loss and continue after "
        "them.",
    ),
]


@app.command(rich_help_panel="Run")
def up(
    config: Config = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    streams_open: StreamsOpen = None,
    log_level: LogLevel = None,
    accept_lost_tail: AcceptLostTail = False,
    json: Told = False,
) -> None:
    """Run everything on this machine: ledger and API, with an embedded Postgres.

    One `up` per data directory. Press Ctrl-C to stop; acknowledged events are safe however it ends.

    [dim]tidelock up --data ./.tidelock --port 8080[/]
    """
    from tidelock.postgres.filelocks import DirectoryLock

    settings = read_settings(
        config, data=data, host=host, port=port, database_url=database_url, streams_open=streams_open,
        log_level=log_level,
    )  # fmt: skip
    flags = {"--config": config, "--data": data, "--database-url": database_url, "--log-level": log_level}
    with DirectoryLock(settings.data):
        _serve(
            settings, streams_open=True, json=json, children=_children(settings, flags, json),
            accept_lost_tail=accept_lost_tail, flagged=database_url is not None,
        )  # fmt: skip


@app.command(rich_help_panel="Run")
def demo(
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: delete what earlier demos recorded.")] = False,
    data: Data = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings file.", show_default="the demo's own", rich_help_panel="Settings"
        ),
    ] = None,
    host: Host = None,
    port: Port = None,
    log_level: LogLevel = None,
    turn: Annotated[
        str, typer.Option("--turn", metavar="DURATION", help="Time between two requests of a producer.")
    ] = "250ms",
    json: Told = False,
) -> None:
    """Run everything with a live feed: a trading desk and an API, with retries, skewed clocks and late events.

    Press Ctrl-C to stop; the data is kept, and the next demo continues from it. Webhooks may be sent to this machine.

    [dim]tidelock demo --fresh[/]
    """
    from tidelock.postgres.filelocks import DirectoryLock

    try:
        turn_s = str(parse_duration(turn) / SECOND)
    except ValueError as error:
        raise SettingsError(f"--turn {turn}: it must be {error}") from None
    config = config or Path(__file__).parent.parent / "demo" / "demo.toml"
    settings = read_settings(
        config, data=data, host=host, port=port, log_level=log_level, webhook_allow_private="true"
    )  # fmt: skip
    with DirectoryLock(settings.data):
        _claim_for_demo(settings, fresh=fresh)
        flags = {"--config": config, "--data": data, "--log-level": log_level}
        feed = [sys.executable, "-m", "tidelock.demo.feed", "{url}", f"{time.time():.3f}", turn_s]
        children = {**_children(settings, flags, json), "feed": feed}
        _serve(settings, streams_open=True, json=json, children=children)


@app.command(rich_help_panel="Run")
def serve(
    config: Config = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    streams_open: StreamsOpen = None,
    log_level: LogLevel = None,
    accept_lost_tail: AcceptLostTail = False,
    json: Told = False,
) -> None:
    """Serve a ledger in production. Any number of processes can share one database; only declared streams are accepted.

    [dim]DATABASE_URL=postgresql://tidelock@db.example/tidelock tidelock serve --host 0.0.0.0[/]
    """
    settings = read_settings(
        config, data=data, host=host, port=port, database_url=database_url, streams_open=streams_open,
        log_level=log_level,
    )  # fmt: skip
    flagged = database_url is not None
    _serve(settings, streams_open=False, json=json, accept_lost_tail=accept_lost_tail, flagged=flagged)


@app.command(rich_help_panel="Run")
def migrate(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Create the database schema or bring it up to date. `up` and `serve` do this automatically.

    [dim]tidelock migrate --database-url postgresql://tidelock@db.example/tidelock[/]
    """
    from tidelock.postgres.migrate import status

    settings = read_settings(config, data=data, database_url=database_url)
    started = time.time()
    with made_ledger(settings) as database, database.connect_sync(name="tidelock migrate") as connection:
        known = status(connection)
        place = database.place
    if json:
        terminal.write_json(*({"title": m.title, "state": m.state, "appliedAt": m.applied_at} for m in known))
        return
    new = [m.title for m in known if m.applied_at is not None and m.applied_at.timestamp() >= started]
    for title in new:
        terminal.show(f"[green]applied[/]  {title}")
    if not new:
        terminal.show(f"{escape(place)} is up to date: {len(known)} migrations, the last is {known[-1].title}.")


def _claim_for_demo(settings: Settings, *, fresh: bool) -> None:
    """Make sure that sample events go into a demo's ledger. Raises SettingsError if the ledger is not one."""
    if settings.database_url is not None:
        raise SettingsError("the demo needs a ledger of its own for its sample events: unset DATABASE_URL")
    mark = settings.data / "demo.ledger"
    if (settings.data / "postgres").exists() and not mark.exists():
        raise SettingsError(
            f"the ledger in {settings.data} was not created by the demo, and the demo would add sample "
            "events to it: choose another directory with --data"
        )
    if fresh:
        _forget(settings)
    mark.touch()


def _forget(settings: Settings) -> None:
    """Remove the ledger and its anchor; downloads stay."""
    from tidelock.ledger.opening import open_database
    from tidelock.postgres import postmaster

    cluster = settings.data / "postgres"
    if not cluster.exists():
        return
    # A Postgres left running by a killed demo is found, joined, and stopped by its last user: this process.
    open_database(settings).close()
    if postmaster.find(cluster.absolute()) is not None:
        raise SettingsError(
            f"another command uses the ledger in {settings.data}: stop it first, or choose another directory with "
            "--data"
        )
    shutil.rmtree(cluster)
    settings.anchor_path.unlink(missing_ok=True)


def _children(settings: Settings, flags: Mapping[str, object], json: bool) -> dict[str, list[str]]:
    """The child processes, with the settings given to this command; they share its environment and file."""
    from tidelock.sinks.opening import configured

    given = [str(part) for flag, value in flags.items() if value is not None for part in (flag, value)]
    rest = ["--supervised", *given, *(["--json"] if json else [])]
    loads = settings.load.enabled and bool(configured(settings))
    wanted = {"fold": settings.fold.enabled, "mirror": bool(settings.kafka.brokers), "load": loads}
    return {name: [sys.executable, "-m", "tidelock", name, *rest] for name, runs in wanted.items() if runs}


def _serve(
    settings: Settings,
    *,
    streams_open: bool,
    json: bool,
    children: Mapping[str, list[str]] | None = None,
    accept_lost_tail: bool = False,
    flagged: bool = False,
) -> None:
    """`flagged`: the database was given by a flag of this command."""
    from tidelock import app as composition
    from tidelock.postgres.reconnect import database_errors

    started = time.monotonic()
    log_to_stderr(settings.log_level)
    where = _place(settings, flagged)

    def tell(event: str, text: str, **facts: object) -> None:
        if json:
            tell_programs(event, **facts)
        else:
            # A server prints no results, so a closed pipe must not stop it.
            terminal.say_as_it_is(text)

    tell("starting", f"Starting Tidelock on {escape(where)} ...", pid=os.getpid(), database=where)

    def announce(url: str, keys_needed: bool) -> None:
        took_s = time.monotonic() - started
        opened = streams_open if settings.streams_open is None else settings.streams_open
        event = example(settings.definitions, streams_open=opened)
        welcome = _welcome(url, took_s, event, keyless=not keys_needed)
        tell("ready", welcome, url=url, pid=os.getpid(), keysNeeded=keys_needed, seconds=round(took_s, 3))

    with database_errors("the ledger"):
        composition.serve(
            settings, streams_open=streams_open, announce=announce, children=children or {},
            accept_lost_tail=accept_lost_tail,
        )  # fmt: skip
    tell("stopped", "Stopped. Everything acknowledged is in the ledger.", pid=os.getpid())


def _place(settings: Settings, flagged: bool) -> str:
    """Where the ledger is, and which setting says so."""
    from tidelock.postgres.database import Database

    if settings.database_url is None:
        return f"embedded Postgres in {settings.data}"
    option = TABLE["database_url"]
    names = [name for name in (option.env, option.spec.also_env) if name and os.environ.get(name)]
    said = "--database-url" if flagged else names[0] if names else "database_url in tidelock.toml"
    return f"the database of {said} ({Database(settings.database_url).place})"


def _welcome(url: str, took_s: float, event: str | None, *, keyless: bool) -> str:
    header = "" if keyless else "-H 'authorization: Bearer KEY' "
    keys = "none: every request is accepted; create one with [bold]tidelock keys create[/]" if keyless else "required"
    console = f"  [dim]console [/] {url}/\n" if find_spec("nicegui") is not None else ""
    ask = (
        "  [dim]try     [/] no stream is declared, so events are rejected: define a stream or a meter in "
        "tidelock.toml, or start with --streams-open true"
        if event is None
        else f"  [dim]try     [/] curl -s {url}/v1/events {header}-H 'content-type: application/json' \\\n"
        f"             -d '{escape(event)}'"
    )
    return (
        f"[bold green]Tidelock is up[/] at [bold]{url}[/] after {took_s:.1f} s. Press Ctrl-C to stop.\n"
        f"{console}"
        f"  [dim]API docs[/] {url}/docs\n"
        f"  [dim]API keys[/] {keys}\n"
        f"{ask}"
    )
