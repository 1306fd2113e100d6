"""Commands that copy the ledger to other places: `mirror`."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from tidelock.errors import SettingsError
from tidelock.ops.commands.folding import stop_on_signals, stop_with_parent, teller
from tidelock.ops.commands.running import LogLevel, Told, log_to_stderr
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, made_ledger, read_settings, setting
from tidelock.settings import Settings

app = typer.Typer()

Brokers = Annotated[str | None, setting("kafka.brokers", "HOST:PORT,...")]


@app.command(rich_help_panel="Run")
def mirror(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    kafka_brokers: Brokers = None,
    log_level: LogLevel = None,
    once: Annotated[bool, typer.Option("--once", help="Mirror what there is, then stop.")] = False,
    first: Annotated[
        int | None,
        typer.Option("--from", metavar="SEQUENCE", help="Send again from here on: repairs what `verify` found."),
    ] = None,
    supervised: Annotated[bool, typer.Option(hidden=True)] = False,
    json: Told = False,
) -> None:
    """Copy the ledger to Kafka, in its order. `up` does so by itself when brokers are set.

    One at a time mirrors a ledger; others stand by. While brokers are away events wait in the ledger.

    [dim]tidelock mirror --kafka-brokers kafka.example:9092[/]
    """
    settings = read_settings(
        config, data=data, database_url=database_url, log_level=log_level, **{"kafka.brokers": kafka_brokers}
    )
    log_to_stderr(settings.log_level)
    check_kafka(settings)
    stop = stop_on_signals()
    if supervised:
        threading.Thread(target=stop_with_parent, args=(stop,), daemon=True).start()
    from tidelock.mirror.proof import restart_from
    from tidelock.mirror.ranges import read_ledger_end
    from tidelock.mirror.runner import Mirror, calm_collector

    tell = teller("mirror", json)
    with made_ledger(settings) as database:

        def begin() -> int | None:
            with database.connect_sync(name="tidelock mirror") as connection:
                if first is not None:
                    position = restart_from(connection, settings, first)
                    tell(f"mirroring again from what follows sequence {position}")
                return read_ledger_end(connection) if once else None

        through = database.patience.insist_sync(begin)
        calm_collector()
        runner = Mirror(database, settings, tell, patient=not once)
        runner.run(stop, through=through)
        if once and not stop.is_set():
            tell(f"everything through sequence {runner.position} is in Kafka")


def check_kafka(settings: Settings) -> None:
    """Raises SettingsError where there are no brokers to talk to, nor the means."""
    if not settings.kafka.brokers:
        raise SettingsError(
            "no brokers are set: name them with `[kafka] brokers` in tidelock.toml, TIDELOCK_KAFKA_BROKERS or "
            "--kafka-brokers; `tidelock dev kafka` runs one here",
            field="kafka.brokers",
        )
    try:
        from tidelock.mirror import cluster
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed; it comes with: pip install 'tidelock[kafka]'") from None
    cluster.check(settings.kafka)
