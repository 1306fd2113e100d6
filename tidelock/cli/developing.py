"""Commands for development: `dev kafka`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelock.cli import terminal
from tidelock.cli.fold import stop_on_signals
from tidelock.cli.serve import Told, tell_programs
from tidelock.cli.session import Config, Data, read_settings

app = typer.Typer(no_args_is_help=True, help="What one needs to try things out. Not for production.")


@app.callback()
def dev() -> None:
    """Nothing of its own: without this, a group of one command would be that command."""


@app.command()
def kafka(
    config: Config = None,
    data: Data = None,
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="Port to listen on; 0 takes a free one.")] = 9092,
    json: Told = False,
) -> None:
    """Run a Kafka here: one broker, on this machine only, its messages in the data directory.

    Kafka itself, fetched the first time (40 MB). Ctrl-C stops it.

    [dim]tidelock dev kafka --port 9092[/]
    """
    settings = read_settings(config, data=data)
    from tidelock.mirror.broker import VERSION, Broker

    stop = stop_on_signals()
    terminal.say(f"Starting Kafka {VERSION} ...")
    broker = Broker(settings.data / "dev-kafka", settings.data, settings.spark.java, port)
    with broker:
        terminal.say(f"[bold green]Kafka is up[/] at [bold]{broker.address}[/]. Ctrl-C stops it.")
        terminal.say(f"  [dim]mirror[/] TIDELOCK_KAFKA_BROKERS={broker.address} tidelock up")
        terminal.say(f"  [dim]log   [/] {broker.log}")
        if json:
            tell_programs("ready", "", brokers=broker.address, log=str(broker.log))
        while not stop.wait(0.2):
            broker.check()
    terminal.say("Stopped.")
    if json:
        tell_programs("stopped", "")
