"""The benchmark of a cluster: `bench cluster`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelock.ops import terminal
from tidelock.ops.commands.bench import Events, Place, numbers, scratch_settings, shown
from tidelock.ops.commands.session import Config, Json

app = typer.Typer()

_ROWS = {
    "eventsPerSecond": "fold with exact changes, end to end, events/s",
    "speedup": "    against one worker of its kind",
    "speedupMost": "    ... at most, if all that executors do were shared out evenly",
    "seconds": "    seconds",
    "sparkSeconds": "    ... waiting for Spark: read, prepare, count, until it is in the driver",
    "driverSeconds": "    ... the driver's own: versions, changes, the rest",
    "postgresSeconds": "    ... waiting for Postgres: stored counters, writing",
    "executorsProcessorSeconds": "    processor time of the executors' JVMs, s",
    "workersProcessorSeconds": "    ... of Python workers, which are the executors'",
    "jvmProcessorSeconds": "    ... of the driver's JVM",
    "pythonProcessorSeconds": "    ... of the Python driver",
    "postgresProcessorSeconds": "    ... of Postgres",
    "outsideMicrosecondsPerEvent": "    processor time of an event outside the executors, µs",
    "jvmMicrosecondsPerEvent": "    ... of the driver's JVM, which in local mode is the executor too",
    "pythonMicrosecondsPerEvent": "    ... of the Python driver",
    "postgresMicrosecondsPerEvent": "    ... of Postgres",
    "executorsMicrosecondsPerEvent": "    processor time of an event in the executors' JVMs, µs",
    "workersMicrosecondsPerEvent": "    ... in Python workers",
    "coresBusy": "    cores that were busy",
}


@app.command()
def cluster(
    events: Events = 2_000_000,
    workers: Annotated[str, typer.Option(help="Workers of one core each, by commas; measured in turn.")] = "1,2",
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure the fold of a backlog by one worker and by more, on a standalone cluster and in one JVM.

    Starts a Spark master, workers and a Postgres of its own on this machine. Use a quiet machine; trust ratios.

    [dim]tidelock bench cluster --events 2000000 --workers 1,2[/]
    """
    from tidelock.ops.bench.cluster import measure

    counts = numbers(workers, "workers", 1)
    figures = measure(scratch_settings(config), counts, events, terminal.say, place=data)
    if json:
        terminal.write_json(*figures)
        return
    kinds = [f"local[{count}]" for count in counts] + [f"cluster of {count}" for count in counts]
    terminal.show_table(
        ["", *(f"{kind}#" for kind in kinds)],
        [[text, *(shown(figure[name]) for figure in figures)] for name, text in _ROWS.items()],
    )
