"""Commands that load the ledger into other stores: `load`."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Annotated

import typer

from tidelock.errors import SettingsError
from tidelock.ops.commands.folding import stop_on_signals, stop_with_parent, teller
from tidelock.ops.commands.running import LogLevel, Told, log_to_stderr
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, made_ledger, read_settings, setting

app = typer.Typer()

LakePath = Annotated[str | None, setting("lake.path", "PATH")]
ClickHouseUrl = Annotated[str | None, setting("clickhouse.url", "URL")]


class Name(StrEnum):
    """A store."""

    lake = "lake"
    clickhouse = "clickhouse"


@app.command(rich_help_panel="Run")
def load(
    stores: Annotated[
        list[Name] | None, typer.Argument(metavar="[lake|clickhouse]...", help="None: all that are set.")
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    lake_path: LakePath = None,
    clickhouse_url: ClickHouseUrl = None,
    log_level: LogLevel = None,
    once: Annotated[bool, typer.Option("--once", help="Load what there is, then stop.")] = False,
    first: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="SEQUENCE", min=1, help="Load again from here on: repairs what `verify` found. Then stop."
        ),
    ] = None,
    supervised: Annotated[bool, typer.Option(hidden=True)] = False,
    json: Told = False,
) -> None:
    """Load the ledger into Parquet files and ClickHouse, in its order, on Spark. `up` does so when they are set.

    One at a time loads a store; others stand by. While a store is away events wait in the ledger. For a repair the
    loader that has the store, such as that of `up`, lets go of it and goes on afterwards.

    [dim]tidelock load lake --lake-path /srv/lake --once[/]
    """
    from tidelock.sinks import stores as places

    settings = read_settings(
        config, data=data, database_url=database_url, log_level=log_level,
        **{"lake.path": lake_path, "clickhouse.url": clickhouse_url},
    )  # fmt: skip
    log_to_stderr(settings.log_level)
    names = places.chosen(settings, [store.value for store in stores or []])
    places.check_stores(settings)
    stop = stop_on_signals()
    if supervised:
        threading.Thread(target=stop_with_parent, args=(stop,), daemon=True).start()
    tell = teller("load", json)
    with made_ledger(settings) as database:

        def begin() -> int:
            with database.connect_sync(name="tidelock load") as connection:
                if first is not None:
                    _check_first(first, places.positions(connection, names))
                return places.source_end(connection, settings)

        end = database.patience.insist_sync(begin)
        through = end if once or first is not None else None
        places.load(settings, database, names, stop=stop, through=through, since=first, tell=tell)
        if through is not None and not stop.is_set():
            tell(f"{' and '.join(names)}: complete through sequence {through}")


def _check_first(first: int, positions: dict[str, int]) -> None:
    for name, position in positions.items():
        if first > position:
            upto = f"1 to {position}" if position else "none yet"
            rest = f"`tidelock load {name} --once` loads the rest"
            raise SettingsError(f"--from {first}: the sequences that were loaded into {name} are {upto}; {rest}")
