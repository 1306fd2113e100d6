"""Commands that measure: `bench ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelock.errors import SettingsError
from tidelock.ops import terminal
from tidelock.ops.commands.session import Config, Json
from tidelock.settings import load

app = typer.Typer(no_args_is_help=True, help="Measure Tidelock beside its limits, in one run, on a scratch ledger.")

_ROWS = {
    "copyEventsPerSecond": "raw COPY into the same tables, 1,000 rows a transaction (the limit), events/s",
    "batchEventsPerSecond": "HTTP, 1,000 events a request, 8 connections, events/s",
    "batchRatioToCopy": "    against raw COPY",
    "batchMicrosecondsPerEvent": "    cost per event, µs",
    "batchP50Ms": "    p50 of a request, ms",
    "batchP99Ms": "    p99 of a request, ms",
    "singleEventsPerSecond": "HTTP, 1 event a request, 8 connections, events/s",
    "singleP50Ms": "    p50 of a request, ms",
    "singleP99Ms": "    p99 of a request, ms",
}


@app.callback()
def bench() -> None:
    """Commands below; a callback keeps `bench ingest` a command of its own while it is the only one."""


@app.command()
def ingest(
    sizes: Annotated[
        str, typer.Option(help="Events in the ledger before measuring; several, by commas, compare the cost.")
    ] = "0",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds at each size; the medians count.")] = 5,
    events: Annotated[int, typer.Option(min=8_000, max=10_000_000, help="Events in each round and way.")] = 40_000,
    config: Config = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the scratch ledger is made and thrown away.", show_default="the system's place"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the ingest route beside raw COPY into the same tables, `synchronous_commit` on.

    Runs a server and a Postgres of its own in a scratch directory. Use a quiet machine; trust ratios.

    [dim]tidelock bench ingest --sizes 1000000,10000000 --events 1000000 --rounds 1[/]
    """
    from tidelock.ops.bench.ingest import measure

    if load(config, {}, {}).database_url is not None:
        raise SettingsError("database_url is set; `bench` measures a scratch ledger only", field="database_url")
    figures = measure(_sizes(sizes), rounds, events, terminal.say, config=config, place=data)
    if json:
        terminal.write_json(*figures)
        return
    headings = ["", *(f"at {figure['ledgerEvents']:,} events#" for figure in figures)]
    terminal.show_table(
        headings, [[text, *(f"{figure[name]:,}" for figure in figures)] for name, text in _ROWS.items()]
    )
    if len(figures) > 1:
        first, last = figures[0], figures[-1]
        cost = last["batchMicrosecondsPerEvent"] / first["batchMicrosecondsPerEvent"]
        terminal.show(f"cost per event at {last['ledgerEvents']:,} against {first['ledgerEvents']:,}: {cost:.2f}x")


def _sizes(text: str) -> list[int]:
    try:
        return sorted(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"{text!r} is not a list of numbers such as 0,1000000", field="sizes") from None
