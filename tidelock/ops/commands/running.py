"""Commands that run the ledger: `up`, `demo`, `serve`, `migrate`."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tidelock.durations import parse_duration
from tidelock.errors import SettingsError
from tidelock.instants import SECOND
from tidelock.ops import terminal
from tidelock.ops.commands.session import (
    Config,
    Data,
    DatabaseUrl,
    Json,
    composition,
    made_ledger,
    read_settings,
    setting,
)
from tidelock.settings import Settings

app = typer.Typer()

Host = Annotated[str | None, setting("host", "HOST")]
Port = Annotated[str | None, setting("port", "PORT")]
StreamsOpen = Annotated[str | None, setting("streams_open", "true|false")]
LogLevel = Annotated[str | None, setting("log_level", "LEVEL")]
AcceptLostTail = Annotated[
    bool,
    typer.Option(
        "--accept-lost-tail",
        help="Where the anchor file proves that the ledger's last events are gone: record that they are lost, and go "
        "on above them.",
    ),
]
Told = Annotated[
    bool, typer.Option("--json", help="Tell of the start and the stop in JSON, one object a line, on stdout.")
]


@app.command(rich_help_panel="Run")
def up(
    context: typer.Context,
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
    """Run everything here: ledger and API, with a Postgres of its own.

    One `up` per data directory. Ctrl-C stops it; what was acknowledged is safe either way.

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
            context, settings, streams_open=True, json=json, children=_children(settings, flags, json),
            accept_lost_tail=accept_lost_tail,
        )  # fmt: skip


@app.command(rich_help_panel="Run")
def demo(
    context: typer.Context,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: forget what earlier demos recorded.")] = False,
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
    turn: Annotated[str, typer.Option("--turn", metavar="DURATION", help="How often its producers send.")] = "250ms",
    json: Told = False,
) -> None:
    """Run everything with a live feed: a trading desk and an API, with retries, skewed clocks and late events.

    Ctrl-C stops it and keeps its data; the next demo goes on from there. Webhooks may go to this machine.

    [dim]tidelock demo --fresh[/]
    """
    from tidelock.ops.demo.place import claim
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
        claim(settings, fresh=fresh)
        flags = {"--config": config, "--data": data, "--log-level": log_level}
        feed = [sys.executable, "-m", "tidelock.ops.demo.feed", "{url}", f"{time.time():.3f}", turn_s]
        children = {**_children(settings, flags, json), "feed": feed}
        _serve(context, settings, streams_open=True, json=json, children=children)


@app.command(rich_help_panel="Run")
def serve(
    context: typer.Context,
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
    """Serve a ledger in production: any number of these on one database, declared streams only.

    [dim]DATABASE_URL=postgresql://tidelock@db.example/tidelock tidelock serve --host 0.0.0.0[/]
    """
    settings = read_settings(
        config, data=data, host=host, port=port, database_url=database_url, streams_open=streams_open,
        log_level=log_level,
    )  # fmt: skip
    _serve(context, settings, streams_open=False, json=json, accept_lost_tail=accept_lost_tail)


@app.command(rich_help_panel="Run")
def migrate(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Bring the database's schema up to date, or make it. `up` and `serve` do so by themselves.

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


def _children(settings: Settings, flags: Mapping[str, object], json: bool) -> dict[str, list[str]]:
    """What runs beside the server, with the settings of this command: environment and file they have anyway."""
    from tidelock.ops.stores import configured

    given = [str(part) for flag, value in flags.items() if value is not None for part in (flag, value)]
    rest = ["--supervised", *given, *(["--json"] if json else [])]
    loads = settings.load.enabled and bool(configured(settings))
    wanted = {"fold": settings.fold.enabled, "mirror": bool(settings.kafka.brokers), "load": loads}
    return {name: [sys.executable, "-m", "tidelock", name, *rest] for name, runs in wanted.items() if runs}


def _serve(
    context: typer.Context,
    settings: Settings,
    *,
    streams_open: bool,
    json: bool,
    children: Mapping[str, list[str]] | None = None,
    accept_lost_tail: bool = False,
) -> None:
    from tidelock.postgres.reconnect import database_errors

    started = time.monotonic()
    log_to_stderr(settings.log_level)
    where = "the database named by DATABASE_URL" if settings.database_url else f"embedded Postgres in {settings.data}"
    tell = tell_programs if json else _tell_people
    tell("starting", f"Starting Tidelock on {escape(where)} ...", pid=os.getpid(), database=where)

    def announce(url: str, keys_needed: bool) -> None:
        took_s = time.monotonic() - started
        welcome = _welcome(url, took_s, keyless=not keys_needed)
        tell("ready", welcome, url=url, pid=os.getpid(), keysNeeded=keys_needed, seconds=round(took_s, 3))

    with database_errors("the ledger"):
        composition(context).serve(
            settings, streams_open=streams_open, announce=announce, children=children or {},
            accept_lost_tail=accept_lost_tail,
        )  # fmt: skip
    tell("stopped", "Stopped. Everything acknowledged is in the ledger.", pid=os.getpid())


def _tell_people(_: str, text: str, **__: object) -> None:
    # Not on stdout's account: a server prints no results, and a pipe that is closed must not stop it.
    terminal.say_as_it_is(text)


def tell_programs(event: str, _: str, **facts: object) -> None:
    try:
        terminal.write_json({"event": event, **facts})
    except BrokenPipeError:
        # Nobody listens any more, which must not stop a server. What is buffered must not complain at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _welcome(url: str, took_s: float, *, keyless: bool) -> str:
    header = "" if keyless else "-H 'authorization: Bearer KEY' "
    keys = (
        "none made: every request is taken; [bold]tidelock keys create[/] makes one"
        if keyless
        else "every request needs one"
    )
    event = '{"stream":"api_calls","customerRef":"cus_1","quantity":"1.5","ts":"2026-01-31T23:59:59.5Z"}'
    return (
        f"[bold green]Tidelock is up[/] at [bold]{url}[/] after {took_s:.1f} s. Ctrl-C stops it.\n"
        f"  [dim]console [/] {url}/\n"
        f"  [dim]API docs[/] {url}/docs\n"
        f"  [dim]API keys[/] {keys}\n"
        f"  [dim]try     [/] curl -s {url}/v1/events {header}-H 'content-type: application/json' \\\n"
        f"             -d '{escape(event)}'"
    )


def log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
