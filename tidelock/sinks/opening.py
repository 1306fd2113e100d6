"""The stores that settings name: opened to be loaded, and to be proven."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tidelock.errors import SettingsError
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.java import check_java

if TYPE_CHECKING:
    # Spark's modules, and ClickHouse's, only when something is loaded.
    from tidelock.ledger.findings import Check
    from tidelock.sinks.lakeranges import LakeRanges
    from tidelock.sinks.loader import Loading, Sink
    from tidelock.sinks.proof import Copy
    from tidelock.spark.runtime import Spark

LAKE, CLICKHOUSE = "lake", "clickhouse"
STORES = (CLICKHOUSE, LAKE)

_HOW = {
    LAKE: "no lake is configured: set a directory or a URL with `[lake] path` in tidelock.toml, or TIDELOCK_LAKE_PATH",
    CLICKHOUSE: "no ClickHouse is configured: set one with `[clickhouse] url` in tidelock.toml, or "
    "TIDELOCK_CLICKHOUSE_URL",
}


def configured(settings: Settings) -> list[str]:
    """The stores that are set, by the names of their cursors."""
    places = {CLICKHOUSE: settings.clickhouse.url, LAKE: settings.lake.path}
    return [name for name in STORES if places[name] is not None]


def chosen(settings: Settings, names: Sequence[str]) -> list[str]:
    """Those that are named, else all that are set. Raises SettingsError for one that is not, or where there is none."""
    known = configured(settings)
    if not names and not known:
        raise SettingsError(
            "no store is set: name a lake with `[lake] path` in tidelock.toml or --lake-path, or ClickHouse with "
            "`[clickhouse] url` or --clickhouse-url"
        )
    for name in names:
        if name not in known:
            raise SettingsError(_HOW[name], field="lake.path" if name == LAKE else "clickhouse.url")
    return list(dict.fromkeys(names)) or known


def check_stores(settings: Settings) -> None:
    """Raises SettingsError for what cannot be loaded as it is set."""
    check_java(settings.spark.java)
    if settings.clickhouse.url is not None:
        from tidelock.sinks.clickhouse import ClickHouseStore

        ClickHouseStore(settings.clickhouse)


def load(
    settings: Settings,
    database: Database,
    names: Sequence[str],
    *,
    stop: threading.Event,
    through: int | None,
    since: int | None,
    tell: Callable[[str], None],
) -> None:
    """Load stores until told to stop, or through a sequence; `since`: what was loaded from there on is replaced."""
    from tidelock.sinks.loader import Loader
    from tidelock.spark.configuration import check as check_spark
    from tidelock.spark.runtime import Spark

    check_spark(settings.spark, settings.database_url)
    tell("starting Spark ...")
    own = replace(settings.spark, driver_memory=settings.load.driver_memory)
    with Spark(own, settings.data, _jars(settings)) as spark:
        loadings = [_loading(spark, database, _sink(name, spark, settings), settings) for name in names]
        loader = Loader(spark, database, loadings, settings.load, tell)
        loader.run(stop, through=through, since=since)


def source_end(connection: psycopg.Connection[Any], settings: Settings) -> int:
    """Where what can be loaded ends now: with the mirror, where there is one."""
    row = connection.execute("SELECT ingress_sequence FROM ledger_head").fetchone()
    assert row is not None, "the head is always there"
    end = int(row[0])
    return min(end, positions(connection, ["kafka"])["kafka"]) if settings.kafka.brokers else end


def positions(connection: psycopg.Connection[Any], names: Sequence[str]) -> dict[str, int]:
    """Through which sequence each store is loaded."""
    rows = connection.execute("SELECT name, sequence FROM cursors WHERE name = ANY(%s)", [list(names)]).fetchall()
    return dict.fromkeys(names, 0) | {str(name): int(sequence) for name, sequence in rows}


def lake_ranges(spark: Spark, database: Database, settings: Settings) -> LakeRanges:
    """The lake's part of the ledger, for refolding from it."""
    from tidelock.sinks.lakeranges import LakeRanges

    with database.connect_sync(name="tidelock replay") as connection:
        through = positions(connection, [LAKE])[LAKE]
    return LakeRanges(spark, settings.lake, database, through)


def proven(name: str, settings: Settings, database: Database, progress: Callable[[int, int], None]) -> Check:
    """A store that is set, compared with the ledger."""
    from tidelock.fold.store import Store
    from tidelock.sinks.proof import StoreProof
    from tidelock.tables import SCHEMA

    with closing(Store(database, SCHEMA, name)) as store:
        proof = StoreProof(store, _copy(name, settings))
        proof.compare(progress)
        return proof.check()


def _sink(name: str, spark: Spark, settings: Settings) -> Sink:
    if name == LAKE:
        from tidelock.sinks.lake import LakeSink

        return LakeSink(spark, settings.lake)
    from tidelock.sinks.clickhouse import ClickHouseSink

    return ClickHouseSink(settings.clickhouse)


def _copy(name: str, settings: Settings) -> Copy:
    if name == LAKE:
        from tidelock.sinks.lakereader import LakeReader

        assert settings.lake.path is not None
        return LakeReader(settings.lake.path)
    from tidelock.sinks.clickhouse import ClickHouseStore

    return ClickHouseStore(settings.clickhouse)


def _jars(settings: Settings) -> list[Path]:
    """What Spark needs to read the mirror, where there is one."""
    from tidelock.sinks.kafkasource import kafka_jars

    return kafka_jars(settings.data, settings.spark) if settings.kafka.brokers else []


def _loading(spark: Spark, database: Database, sink: Sink, settings: Settings) -> Loading:
    """From the mirror where there is one, else from the ledger."""
    from tidelock.fold.store import Store
    from tidelock.sinks.kafkasource import KafkaSource
    from tidelock.sinks.loader import Loading
    from tidelock.sinks.source import LedgerSource
    from tidelock.tables import SCHEMA

    store = Store(database, SCHEMA, sink.name)
    if settings.kafka.brokers:
        return Loading(sink, store, KafkaSource(spark, store, database, settings.kafka))
    return Loading(sink, store, LedgerSource(spark, store, database))
