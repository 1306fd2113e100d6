"""The commands of `python -m bench`: one for each measurement, with the table that it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Json
from tidelock.cli.main import Commands
from tidelock.errors import SettingsError
from tidelock.settings import Settings, load

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Measure Tidelock beside its limits, in one run, on a scratch ledger.",
)

Place = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where the scratch ledger is made and thrown away.",
        show_default="the system's place",
    ),
]
Events = Annotated[int, typer.Option(min=1_000, max=100_000_000, help="Events in the backlog.")]

_NUMBER_MAX = 1_000_000_000
_INGEST_ROWS = {
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
_CLOSING_ROWS = {
    "closeSeconds": "one close of all of them, s",
    "closeCountersPerSecond": "    counters/s",
    "closeDriverMb": "    peak of the fold's memory, MB",
    "ingestP99BeforeMs": "p99 of a request of one event, 100 a second at most, before, ms",
    "ingestP99DuringMs": "    while the close is folded, ms",
    "ingestP99Ratio": "    against before",
    "exportRowsPerSecond": "tidelock usage --format csv, rows/s, its start included",
    "exportMb": "    peak of its memory, MB",
}
_FOLD_ROWS = {
    "sparkSumsEventsPerSecond": "plain Spark sums per customer and month from Postgres (the limit), events/s",
    "sparkParquetSumsEventsPerSecond": "the same from Parquet, events/s",
    "duckdbSumsEventsPerSecond": "the same by DuckDB on one thread from Parquet, events/s",
    "foldFirstEventsPerSecond": "fold, for the first time in its JVM, events/s",
    "foldEventsPerSecond": "fold with exact changes, end to end, events/s",
    "foldRatioToSparkSums": "    against plain Spark sums from Postgres",
    "foldRatioToDuckdbSums": "    against DuckDB",
    "shareExecutors": "    share of its time: prepare, fold and encode",
    "shareWrite": "    ... write the tables",
    "shareRecord": "    ... record the changes",
    "shareRest": "    ... the rest",
    "counters": "    counters",
    "adjustments": "    adjustments",
    "changes": "    changes",
    "bytesPerChange": "    bytes of a change",
    "driverPeakMb": "    peak of the Python driver's memory, MB",
    "jvmPeakMb": "    peak of the JVM's memory, MB",
    "workerPeakMb": "    peak of a Python worker's memory, MB",
    "processorMicrosecondsPerEvent": "    processor time of an event, µs",
    "jvmMicrosecondsPerEvent": "    ... of the JVM, which is driver and executor in one",
    "pythonMicrosecondsPerEvent": "    ... of the Python driver",
    "workersMicrosecondsPerEvent": "    ... of Python workers",
    "postgresMicrosecondsPerEvent": "    ... of Postgres",
    "foldAloneEventsPerSecond": "fold with live = false, end to end, events/s",
    "foldAloneRatioToSparkSums": "    against plain Spark sums from Postgres",
    "foldAloneRatioToDuckdbSums": "    against DuckDB",
}
_WINDOWS_ROWS = {
    "sparkSumsEventsPerSecond": "plain Spark sums per key and window from Postgres (the limit), events/s",
    "sparkStreamingEventsPerSecond": "Spark's Structured Streaming from Parquet to Parquet, events/s",
    "sparkExportEventsPerSecond": "    its export of the ledger to Parquet, events/s",
    "duckdbEventsPerSecond": "the sums by DuckDB on one thread from Parquet, events/s",
    "foldEventsPerSecond": "windows by the fold, end to end, events/s",
    "foldRatioToSparkStreaming": "    against Spark's streaming",
    "foldRatioToSparkExportAndStreaming": "    against Spark's streaming with its export",
    "foldRatioToDuckdb": "    against DuckDB",
    "foldRatioToSparkSums": "    against plain Spark sums from Postgres",
    "shareRead": "    share of its time: read and prepare",
    "shareGather": "    ... judge rows and gather windows",
    "shareStored": "    ... stored windows and watermarks",
    "shareWrite": "    ... write the tables",
    "shareRecord": "    ... record the changes",
    "shareRest": "    ... the rest",
    "windows": "    windows closed",
    "foldWaiting": "    windows open at the end",
    "lateRows": "    late rows",
    "changes": "    changes",
    "bytesPerChange": "    bytes of a change",
    "foldGrowth": "    cost of an event, last range against the first",
    "driverPeakMb": "    peak of the Python driver's memory, MB",
    "jvmPeakMb": "    peak of the JVM's memory, MB",
    "openEventsPerSecond": "the same with most windows staying open, events/s",
    "openCostRatio": "    cost of an event against the first",
    "openWaiting": "    windows open at the end",
    "openGrowth": "    cost of an event, last range against the first",
    "openDriverPeakMb": "    peak of the Python driver's memory, MB",
    "openJvmPeakMb": "    peak of the JVM's memory, MB",
    "orderedEventsPerSecond": "ordered output, events/s",
    "orderedCostRatio": "    cost of an event against windows",
    "orderedWaiting": "    rows held at the end",
    "orderedGrowth": "    cost of an event, last range against the first",
    "orderedDriverPeakMb": "    peak of the Python driver's memory, MB",
    "orderedJvmPeakMb": "    peak of the JVM's memory, MB",
    "heldEventsPerSecond": "ordered output with most rows held back, events/s",
    "heldCostRatio": "    cost of an event against windows",
    "heldCostRatioToOrdered": "    ... against ordered output",
    "heldWaiting": "    rows held at the end",
    "heldGrowth": "    cost of an event, last range against the first",
    "heldDriverPeakMb": "    peak of the Python driver's memory, MB",
    "heldJvmPeakMb": "    peak of the JVM's memory, MB",
    "burstLongestSeconds": "longest time between two moves of the cursor, the backlog taken at the fold's own pace",
    "burstVisibleSeconds": "    an event recorded right after the backlog was visible after, s",
    "burstVisibleRatio": "    ... against backlog / throughput and one range",
    "openSomeCostRatio": "cost of an event with 1,000 windows open, against with 10",
    "openManyCostRatio": "    with 100,000 windows open",
    "heldManyCostRatio": "cost of an event of ordered output with 1,500,000 rows held, against with 10",
    "bytewaxEventsPerSecond": "Bytewax, the same windows from memory to a local file, events/s",
    "foldRatioToBytewax": "    the fold against it",
    "flinkEventsPerSecond": "Flink SQL, the same windows from local CSV files to another, events/s",
    "foldRatioToFlink": "    the fold against it",
}
_LATENCY_ROWS = {
    "events": "events",
    "eventsPerSecond": "sent, events/s",
    "ackP50Ms": "p50 of a request until it is acknowledged, ms",
    "ackP99Ms": "    p99",
    "firstP50Ms": "p50 from acknowledgement to visible counter in the first 15 s, ms",
    "firstP95Ms": "    p95",
    "firstP99Ms": "    p99",
    "visibleP50Ms": "p50 of the same after a minute, ms",
    "visibleP95Ms": "    p95",
    "visibleP99Ms": "    p99",
    "idlePercent": "processor time of the fold's driver and JVM afterwards, idle, % of a core",
    "serverMb": "memory of the server: first quarter, MB",
    "serverLastMb": "    last quarter",
    "driverMb": "memory of the fold's Python driver: first quarter, MB",
    "driverLastMb": "    last quarter",
    "jvmMb": "memory of the JVM: first quarter, MB",
    "jvmLastMb": "    last quarter",
}
_CORRECTIONS_ROWS = {
    "plainSeconds": "fold of the events, s",
    "oneSeconds": "one correction of their counter, s",
    "manySeconds": "all corrections, of this counter, s",
    "driverPeakMb": "    peak of the Python driver's memory, MB",
    "jvmPeakMb": "    peak of the JVM's memory, MB",
    "countersSeconds": "all corrections, each of a counter of its own, s",
    "countersDriverPeakMb": "    peak of the Python driver's memory, MB",
    "countersJvmPeakMb": "    peak of the JVM's memory, MB",
}
_WEBHOOKS_ROWS = {
    "bareRequestsPerSecond": "signed requests from a bare loop of the same client (the limit), requests/s",
    "bareCpuMicroseconds": "    processor time of each, µs",
    "deliveriesPerSecond": "deliveries from the outbox, each settled with its attempt, deliveries/s",
    "deliveryCpuMicroseconds": "    processor time of each, µs",
    "deliveriesRatioToBare": "    against the bare loop",
    "aloneP50Ms": "p50 from the outbox to the receiver, 100 events/s, ms",
    "aloneP99Ms": "    p99",
    "besideP50Ms": "p50 of the same beside endpoints that hang, ms",
    "besideP99Ms": "    p99",
    "deadEndpoints": "    endpoints that hang, with 1,000 events each",
}
_WEBHOOKS_LATENCY_ROWS = {
    "latencyEvents": "events through a server and its fold to a receiver",
    "acknowledgedToDeliveredP50Ms": "    from acknowledgement to receiver, p50, ms",
    "acknowledgedToDeliveredP95Ms": "    p95, ms",
    "acknowledgedToDeliveredP99Ms": "    p99, ms",
    "visibleP50Ms": "    from acknowledgement to visible counter meanwhile, p50, ms",
}
_LOAD_ROWS = {
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
_CLUSTER_ROWS = {
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
def closing(
    counters: Annotated[
        int, typer.Option(min=1_000, max=10_000_000, help="Counters of one meter and period.")
    ] = 100_000,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure one close of many counters, with ingest meanwhile, and their export.

    Runs a server and a Postgres of its own in a scratch directory. The limits are 60 s for a million counters, and an
    ingest whose p99 is at most twice that of before.

    [dim]python -m bench closing --counters 1000000[/]
    """
    from bench.closing import measure

    scratch_settings(config)
    figures = measure(counters, terminal.say, config=config, place=data)
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(
        ["", f"{counters:,} counters#"], [[text, f"{figures[name]:,}"] for name, text in _CLOSING_ROWS.items()]
    )


@app.command()
def corrections(
    events: Annotated[int, typer.Option(min=1_000, max=100_000_000, help="Events of one counter.")] = 1_000_000,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Corrections of one range.")] = 10_000,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure ranges with corrections: of one counter, and of as many counters.

    Runs a Spark and a Postgres of its own in a scratch directory.

    [dim]python -m bench corrections --events 1000000[/]
    """
    from bench.corrections import measure

    figures = measure(scratch_settings(config), events, count, terminal.say, place=data)
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(
        ["", f"{events:,} events#"], [[text, f"{figures[name]:,}"] for name, text in _CORRECTIONS_ROWS.items()]
    )


@app.command()
def ingest(
    sizes: Annotated[
        str, typer.Option(help="Events in the ledger before measuring; several, by commas, compare the cost.")
    ] = "0",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds at each size; the medians count.")] = 5,
    events: Annotated[int, typer.Option(min=8_000, max=10_000_000, help="Events in each round and way.")] = 40_000,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure the ingest route beside raw COPY into the same tables, `synchronous_commit` on.

    Runs a server and a Postgres of its own in a scratch directory. Use a quiet machine; trust ratios.

    [dim]python -m bench ingest --sizes 1000000,10000000 --events 1000000 --rounds 1[/]
    """
    from bench.ingest import measure

    scratch_settings(config)
    figures = measure(numbers(sizes, "sizes", 0), rounds, events, terminal.say, config=config, place=data)
    if json:
        terminal.write_json(*figures)
        return
    headings = ["", *(f"at {figure['ledgerEvents']:,} events#" for figure in figures)]
    terminal.show_table(
        headings, [[text, *(f"{figure[name]:,}" for figure in figures)] for name, text in _INGEST_ROWS.items()]
    )
    if len(figures) > 1:
        first, last = figures[0], figures[-1]
        cost = last["batchMicrosecondsPerEvent"] / first["batchMicrosecondsPerEvent"]
        terminal.show(f"cost per event at {last['ledgerEvents']:,} against {first['ledgerEvents']:,}: {cost:.2f}x")


@app.command()
def fold(
    events: Events = 2_000_000,
    counters: Annotated[
        str, typer.Option(help="Customers, each with a counter; several, by commas, are measured in turn.")
    ] = "10000,1000000",
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure the fold of a backlog beside plain sums over the same events, by Spark and by DuckDB.

    Runs a Spark and a Postgres of its own in a scratch directory. Use a quiet machine; trust ratios.

    [dim]python -m bench fold --events 2000000 --counters 10000,1000000[/]
    """
    from bench.fold import measure

    settings, customers = scratch_settings(config), numbers(counters, "counters", 1)
    figures = measure(settings, customers, events, terminal.say, place=data)
    if json:
        terminal.write_json(*figures)
        return
    headings = ["", *(f"{figure['customers']:,} customers#" for figure in figures)]
    terminal.show_table(
        headings, [[text, *(shown(figure[name]) for figure in figures)] for name, text in _FOLD_ROWS.items()]
    )


@app.command()
def windows(
    events: Events = 2_000_000,
    keys: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Keys, each with an event a second and so ten in a window.")
    ] = 10_000,
    peers: Annotated[
        Path | None,
        typer.Option(help="Directory with the virtual environments `bytewax` and `flink`, to be measured, too."),
    ] = None,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure windows of ten seconds beside Spark's own streaming and DuckDB, then with much open or held back.

    Runs a Spark and a Postgres of its own in a scratch directory. Use a quiet machine; trust ratios.

    [dim]python -m bench windows --events 2000000 --keys 10000[/]
    """
    from bench.windows import measure

    figures = measure(scratch_settings(config), keys, events, terminal.say, place=data, peers=peers)
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(["", f"{keys:,} keys#"], [[text, shown(figures[name])] for name, text in _WINDOWS_ROWS.items()])


@app.command()
def latency(
    seconds: Annotated[int, typer.Option(min=2, max=86_400, help="How long to send, after a warm-up.")] = 60,
    rate: Annotated[int, typer.Option(min=1, max=10_000, help="Events sent a second, one a request.")] = 100,
    idle: Annotated[int, typer.Option(min=0, max=3_600, help="Seconds to idle afterwards; 0 leaves it out.")] = 60,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure how long after its acknowledgement an event is in its counter, what idling costs, and memory.

    Runs `tidelock up` with one meter in a scratch directory.

    [dim]python -m bench latency --seconds 1800[/]
    """
    from bench.latency import measure

    figures = measure(scratch_settings(config), seconds, rate, terminal.say, idle=idle, config=config, place=data)
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(["", "#"], [[text, shown(figures[name])] for name, text in _LATENCY_ROWS.items()])


@app.command()
def webhooks(
    events: Annotated[int, typer.Option(min=10, max=10_000_000, help="Deliveries in each round and way.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds; the medians count.")] = 3,
    seconds: Annotated[int, typer.Option(min=1, max=86_400, help="How long to measure delays, each way.")] = 30,
    dead: Annotated[int, typer.Option(min=0, max=1_000, help="Endpoints that never answer.")] = 20,
    rate: Annotated[
        int, typer.Option(min=0, max=10_000, help="Events a second from acknowledgement to receiver; 0 leaves it out.")
    ] = 100,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure deliveries to a local receiver beside a bare loop of requests, and beside endpoints that hang.

    Runs a Postgres and a receiver of its own, and for the whole way from an acknowledgement a server and a fold. Use a
    quiet machine; trust ratios.

    [dim]python -m bench webhooks --events 20000[/]
    """
    from bench import webhook_latency
    from bench.webhooks import measure

    settings = scratch_settings(config)
    figures: dict[str, object] = dict(
        measure(settings, events, rounds, terminal.say, seconds=seconds, dead=dead, place=data)
    )
    if rate:
        figures |= webhook_latency.measure(settings, seconds, rate, terminal.say, place=data)
    if json:
        terminal.write_json(figures)
        return
    rows = _WEBHOOKS_ROWS | (_WEBHOOKS_LATENCY_ROWS if rate else {})
    terminal.show_table(["", "#"], [[text, shown(figures[name])] for name, text in rows.items()])


@app.command()
def live(
    subscribers: Annotated[
        str, typer.Option(help="Subscribers; several, by commas, are measured in turn.")
    ] = "100,1000",
    messages: Annotated[
        int, typer.Option(min=1_000, max=100_000_000, help="Messages in each round, to all subscribers together.")
    ] = 200_000,
    seconds: Annotated[
        int, typer.Option(min=0, max=86_400, help="How long to send for delays, after a warm-up; 0 leaves them out.")
    ] = 60,
    rate: Annotated[int, typer.Option(min=1, max=10_000, help="Events sent a second for delays, one a request.")] = 100,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure filters, fan-out beside a bare loop of WebSockets and Strawberry, and how soon a subscriber knows.

    Runs servers of its own in a scratch directory, for delays with a fold. Use a quiet machine; trust ratios.

    [dim]python -m bench live --subscribers 100,1000[/]
    """
    from bench.live import measure, rows

    settings, counts = scratch_settings(config), numbers(subscribers, "subscribers", 1)
    figures = measure(
        settings, counts, messages=messages, seconds=seconds, rate=rate, say=terminal.say, config=config, place=data
    )
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(["", "#"], [[text, shown(figures[name])] for name, text in rows(counts, seconds).items()])


@app.command()
def mirror(
    events: Annotated[int, typer.Option(min=1_000, max=10_000_000, help="Events in the backlog.")] = 200_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds; the medians count.")] = 5,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure the mirror beside a bare producer loop that sends the same messages from memory.

    Runs a Kafka and a Postgres of its own in a scratch directory. Use a quiet machine; trust ratios.

    [dim]python -m bench mirror --events 200000[/]
    """
    from bench.mirror import ROWS, measure

    figures = measure(scratch_settings(config), events, rounds, terminal.say, place=data)
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(["", "#"], [[text, shown(figures[name])] for name, text in ROWS.items()])


@app.command("load")
def stores(events: Events = 2_000_000, config: Config = None, data: Place = None, json: Json = False) -> None:
    """Measure loading a lake and chDB beside DuckDB writing the same files, and folding from the lake.

    Runs a Spark and a Postgres of its own in a scratch directory. Use a quiet machine; trust ratios.

    [dim]python -m bench load --events 2000000[/]
    """
    from bench.stores import measure

    figures = measure(scratch_settings(config), events, terminal.say, place=data)
    if json:
        terminal.write_json(figures)
        return
    terminal.show_table(
        ["", f"{events:,} events#"], [[text, shown(figures[name])] for name, text in _LOAD_ROWS.items()]
    )


@app.command()
def cluster(
    events: Events = 2_000_000,
    workers: Annotated[str, typer.Option(help="Workers of one core each, by commas; measured in turn.")] = "1,2",
    quota: Annotated[
        float | None,
        typer.Option(min=0.05, max=1.0, help="What each worker may have of its core. Only on Linux, as root."),
    ] = None,
    config: Config = None,
    data: Place = None,
    json: Json = False,
) -> None:
    """Measure the fold of a backlog by one worker and by more, on a standalone cluster and in one JVM.

    Starts a Spark master, workers and a Postgres of its own on this machine. Use a quiet machine; trust ratios.

    [dim]python -m bench cluster --events 2000000 --workers 1,2[/]
    """
    from bench.cluster import measure

    counts = numbers(workers, "workers", 1)
    figures = measure(scratch_settings(config), counts, events, terminal.say, place=data, quota=quota)
    if json:
        terminal.write_json(*figures)
        return
    kinds = [f"local[{count}]" for count in counts] if quota is None else []
    kinds += [f"cluster of {count}" for count in counts]
    terminal.show_table(
        ["", *(f"{kind}#" for kind in kinds)],
        [[text, *(shown(figure[name]) for figure in figures)] for name, text in _CLUSTER_ROWS.items()],
    )


def scratch_settings(config: Path | None) -> Settings:
    """Of the file only: the environment names the ledger that people work on."""
    settings = load(config, {}, {})
    if settings.database_url is not None:
        raise SettingsError("database_url is set; `bench` measures a scratch ledger only", field="database_url")
    return settings


def shown(figure: object) -> str:
    return f"{figure:,}" if isinstance(figure, int | float) else "unknown"


def numbers(text: str, field: str, least: int) -> list[int]:
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and least <= int(part) <= _NUMBER_MAX for part in parts):
        raise SettingsError(f"{text!r} is not a list of numbers such as {least},1000000", field=field)
    return sorted({int(part) for part in parts})
