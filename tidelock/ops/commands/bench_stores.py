"""The benchmark of the loader: `bench load`."""

from __future__ import annotations

import typer

from tidelock.ops import terminal
from tidelock.ops.commands.bench import Events, Place, scratch_settings, shown
from tidelock.ops.commands.session import Config, Json

app = typer.Typer()

_ROWS = {
    "duckdbEventsPerSecond": "DuckDB writing the same Parquet files from Parquet (the limit), events/s",
    "duckdbOneEventsPerSecond": "    on one thread",
    "lakeEventsPerSecond": "the ledger into a lake, end to end, events/s",
    "lakeRatioToDuckdb": "    against DuckDB",
    "lakeFirstEventsPerSecond": "    for the first time in its JVM, events/s",
    "bytesPerEvent": "    bytes of an event",
    "clickhouseEventsPerSecond": "the ledger into chDB, end to end, events/s",
    "foldEventsPerSecond": "folded from the ledger, events/s",
    "foldReadSeconds": "    seconds until its events are read and prepared",
    "foldFromLakeEventsPerSecond": "folded from the lake, events/s",
    "foldFromLakeReadSeconds": "    seconds until its events are read and prepared",
    "foldFromLakeRatio": "    against the ledger",
    "foldMembersEventsPerSecond": "a member of data folded from the ledger, events/s",
    "foldMembersReadSeconds": "    seconds until its events are read and prepared",
    "foldMembersFromLakeEventsPerSecond": "the same from the lake, events/s",
    "foldMembersFromLakeReadSeconds": "    seconds until its events are read and prepared",
    "foldMembersFromLakeRatio": "    against the ledger",
}


@app.command()
def load(events: Events = 2_000_000, config: Config = None, data: Place = None, json: Json = False) -> None:
    """Measure loading a lake and chDB beside DuckDB writing the same files, and folding from the lake.

    Runs a Spark and a Postgres of its own in a scratch directory. Use a quiet machine; trust ratios.

    [dim]tidelock bench load --events 2000000[/]
    """
    from tidelock.ops.bench.stores import measure

    figures = measure(scratch_settings(config), events, terminal.say, place=data)
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(["", f"{events:,} events#"], [[text, shown(figures[name])] for name, text in _ROWS.items()])
