"""Commands that copy the ledger to other systems, `mirror` and `load`; and `dev`, tools around them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, LogLevel, Told, read_settings, setting
from tidelock.cli.session import (
    log_to_stderr,
    made_ledger,
    stop_on_signals,
    stop_with_parent,
    tell_programs,
    teller,
)
from tidelock.errors import SettingsError, Unreachable
from tidelock.settings import Settings

app = typer.Typer()
dev = typer.Typer(no_args_is_help=True, help="Tools for trying things out. Not for production.")

Brokers = Annotated[str | None, setting("kafka.brokers", "HOST:PORT,...")]
LakePath = Annotated[str | None, setting("lake.path", "PATH")]
ClickHouseUrl = Annotated[str | None, setting("clickhouse.url", "URL")]


class StoreName(StrEnum):
    """A store that can be loaded."""

    lake = "lake"
    clickhouse = "clickhouse"


@app.command(rich_help_panel="Run")
def mirror(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    kafka_brokers: Brokers = None,
    log_level: LogLevel = None,
    once: Annotated[bool, typer.Option("--once", help="Mirror what is recorded, then stop.")] = False,
    first: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="SEQUENCE", help="Send again from this sequence on, to repair what `verify` found."
        ),
    ] = None,
    supervised: Annotated[bool, typer.Option(hidden=True)] = False,
    json: Told = False,
) -> None:
    """Copy the ledger to Kafka, in ledger order. `up` does this automatically if brokers are configured.

    One process mirrors a ledger at a time; others are on standby. While brokers are unreachable, events wait in the
    ledger.

    [dim]tidelock mirror --kafka-brokers kafka.example:9092[/]
    """
    settings = read_settings(
        config, data=data, database_url=database_url, log_level=log_level, **{"kafka.brokers": kafka_brokers}
    )
    log_to_stderr(settings.log_level)
    check_kafka(settings)
    stop = stop_on_signals()
    if supervised:
        stop_with_parent(stop)
    from tidelock.mirror.proof import restart_from
    from tidelock.mirror.ranges import read_ledger_end
    from tidelock.mirror.runner import Mirror, calm_collector

    tell = teller("mirror", json)
    with made_ledger(settings) as database:

        def begin() -> int | None:
            with database.connect_sync(name="tidelock mirror") as connection:
                if first is not None:
                    position = restart_from(connection, settings, first)
                    tell(f"mirroring again after sequence {position}")
                return read_ledger_end(connection) if once else None

        through = database.patience.insist_sync(begin)
        calm_collector()
        runner = Mirror(database, settings, tell, patient=not once)
        runner.run(stop, through=through)
        if once and not stop.is_set():
            tell(f"everything through sequence {runner.position} is in Kafka")


@app.command(rich_help_panel="Run")
def load(
    stores: Annotated[
        list[StoreName] | None, typer.Argument(metavar="[lake|clickhouse]...", help="Default: all that are configured.")
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    lake_path: LakePath = None,
    clickhouse_url: ClickHouseUrl = None,
    log_level: LogLevel = None,
    once: Annotated[bool, typer.Option("--once", help="Load what is recorded, then stop.")] = False,
    first: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="SEQUENCE",
            min=1,
            help="Load again from this sequence on, to repair what `verify` found, then stop.",
        ),
    ] = None,
    supervised: Annotated[bool, typer.Option(hidden=True)] = False,
    json: Told = False,
) -> None:
    """Load the ledger into Parquet files and ClickHouse, on Spark. `up` does this if they are configured.

    One process loads a store at a time; others are on standby. While a store is unreachable, events wait in the ledger.
    During a repair, a loader that is using the store, such as the one in `up`, releases it and continues afterwards.

    [dim]tidelock load lake --lake-path /srv/lake --once[/]
    """
    from tidelock.sinks.opening import check_stores, chosen, positions, source_end
    from tidelock.sinks.opening import load as load_stores

    settings = read_settings(
        config, data=data, database_url=database_url, log_level=log_level,
        **{"lake.path": lake_path, "clickhouse.url": clickhouse_url},
    )  # fmt: skip
    log_to_stderr(settings.log_level)
    names = chosen(settings, [store.value for store in stores or []])
    check_stores(settings)
    stop = stop_on_signals()
    if supervised:
        stop_with_parent(stop)
    tell = teller("load", json)
    with made_ledger(settings) as database:

        def begin() -> int:
            with database.connect_sync(name="tidelock load") as connection:
                if first is not None:
                    _check_first(first, positions(connection, names))
                return source_end(connection, settings)

        end = database.patience.insist_sync(begin)
        through = end if once or first is not None else None
        load_stores(settings, database, names, stop=stop, through=through, since=first, tell=tell)
        if through is not None and not stop.is_set():
            tell(f"{' and '.join(names)}: complete through sequence {through}")


@dev.callback()
def _dev() -> None:
    """Does nothing: without a callback, Typer would turn a group with one command into that command."""


@dev.command()
def kafka(
    config: Config = None,
    data: Data = None,
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="Port to listen on; 0 picks a free one.")] = 9092,
    json: Told = False,
) -> None:
    """Run a Kafka broker for this machine only, with its messages in the data directory.

    It is a real Kafka, downloaded the first time (40 MB). Press Ctrl-C to stop.

    [dim]tidelock dev kafka --port 9092[/]
    """
    settings = read_settings(config, data=data)
    from tidelock.mirror.broker import VERSION, Broker

    stop = stop_on_signals()
    terminal.say(f"Starting Kafka {VERSION} ...")
    broker = Broker(settings.data / "dev-kafka", settings.data, settings.spark.java, port)
    with broker:
        terminal.say(f"[bold green]Kafka is up[/] at [bold]{broker.address}[/]. Press Ctrl-C to stop.")
        terminal.say(f"  [dim]mirror[/] TIDELOCK_KAFKA_BROKERS={broker.address} tidelock up")
        terminal.say(f"  [dim]log   [/] {broker.log}")
        if json:
            tell_programs("ready", brokers=broker.address, log=str(broker.log))
        while not stop.wait(0.2):
            broker.check()
    terminal.say("Stopped.")
    if json:
        tell_programs("stopped")


def check_kafka(settings: Settings) -> None:
    """Raises SettingsError if no brokers are configured or the client is not installed."""
    if not settings.kafka.brokers:
        raise SettingsError(
            "no Kafka brokers are configured: set them with `[kafka] brokers` in tidelock.toml, "
            "TIDELOCK_KAFKA_BROKERS or "
            "--kafka-brokers; `tidelock dev kafka` runs one on this machine",
            field="kafka.brokers",
        )
    try:
        from tidelock.mirror import cluster
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed; install it with: pip install 'tidelock[kafka]'") from None
    cluster.check(settings.kafka)


def _check_first(first: int, positions: dict[str, int]) -> None:
    for name, position in positions.items():
        if first > position:
            upto = f"1 to {position}" if position else "none yet"
            rest = f"`tidelock load {name} --once` loads the rest"
            raise SettingsError(f"--from {first}: the sequences that were loaded into {name} are {upto}; {rest}")


@dev.command()
def jars(config: Config = None, data: Data = None, log_level: LogLevel = None, json: Told = False) -> None:
    """Download the jars that Spark needs into `jars` in the data directory.

    For machines and images without network access: copy the directory there and set `spark.jars` to its path.

    [dim]tidelock dev jars --data /opt/tidelock[/]
    """
    settings = read_settings(config, data=data, log_level=log_level)
    from tidelock.sinks.kafkasource import kafka_jars
    from tidelock.spark.java import java_home
    from tidelock.spark.jvm import SUBMIT
    from tidelock.spark.packages import jdbc_driver

    spark = settings.spark
    if jdbc_driver(settings.data, SUBMIT, java_home(spark.java, settings.data), spark.conf) is None:
        raise Unreachable("The PostgreSQL driver cannot be downloaded; the warning above says why.")
    kafka_jars(settings.data, replace(spark, jars=None))
    directory = settings.data.absolute() / "jars"
    terminal.say(f"The jars are in [bold]{directory}[/].")
    if json:
        tell_programs("fetched", directory=str(directory))
