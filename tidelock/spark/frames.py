"""The ledger as a DataFrame, and sessions that can read it, for your own Spark jobs."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidelock.columns import STRING
from tidelock.errors import SettingsError
from tidelock.ledger.opening import found_ledger
from tidelock.postgres.database import Database
from tidelock.settings import Settings, load
from tidelock.spark.configuration import check, jdbc_options
from tidelock.spark.java import java_home
from tidelock.spark.jvm import SUBMIT
from tidelock.spark.packages import jdbc_driver
from tidelock.spark.runtime import Spark, has_jdbc
from tidelock.where.sql import literal

__all__ = ["jars", "ledger", "session"]

_FETCH_ROWS = 10_000
# Used when the session does not know its cores.
_PARTITIONS = 8
_SELECT = """\
SELECT ingress_sequence, commit_id, source_timestamp, tenant_id, stream, customer_ref, resource_id, row_key, op,
    occurred_at, received_at, quantity::numeric(38, 9) AS quantity, data::text AS data, causality_key, correlation_id,
    causation_id, source, idempotency_key, content_hash, target, target_sequence, reason, batch_id
FROM events"""

#: kept open until the process ends: a DataFrame reads when it is evaluated, not when it is created
_open = ExitStack()
atexit.register(_open.close)


def ledger(
    spark: SparkSession,
    url: str | None = None,
    *,
    streams: str | Iterable[str] | None = None,
    tenant_id: str | None = None,
    after: int | None = None,
    through: int | None = None,
    partitions: int | None = None,
) -> DataFrame:
    """Recorded events above the sequence `after`, up to and with `through`, read in parallel.

    The end is fixed by this call, so the DataFrame has the same rows whenever it is computed. Instants are bigint
    nanoseconds, quantities decimal(38,9), `data` is the JSON text as it was sent. `url` None: the ledger that
    tidelock.toml and the environment name, else the embedded one in ./.tidelock, started if it does not run.
    """
    context = getattr(spark, "_sc", None)
    if context is not None and not has_jdbc(spark):
        raise SettingsError(
            "This Spark session has no PostgreSQL driver. Create it with tidelock.spark.session(), or call "
            '.config("spark.jars", tidelock.spark.jars()) on your own builder.'
        )
    database = Database(url) if url is not None else _configured()
    options = jdbc_options(database.url)
    if options is None:
        raise SettingsError("Spark connects to Postgres over TCP only: put a host in the URL.", field="database_url")
    first, last = (after or 0) + 1, _head(database) if through is None else min(through, _head(database))
    conditions = [f"ingress_sequence BETWEEN {first} AND {last}", *_conditions(streams, tenant_id)]
    return (
        spark.read.format("jdbc")
        .options(**options)
        .options(
            dbtable=f"({_SELECT} WHERE {' AND '.join(conditions)}) AS ledger",
            partitionColumn="ingress_sequence",
            lowerBound=str(first),
            upperBound=str(max(first, last) + 1),
            numPartitions=str(partitions or (context.defaultParallelism if context is not None else _PARTITIONS)),
            fetchsize=str(_FETCH_ROWS),
        )
        .load()
    )


def session(*, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session like Tidelock's own, by the same settings, until the process ends."""
    settings = _settings()
    given = {**settings.spark.conf, **(conf or {})}
    spark = replace(settings.spark, master=master or settings.spark.master, conf=given)
    check(spark, settings.database_url)
    return _open.enter_context(Spark(spark, settings.data)).session


def jars(data: str | Path | None = None) -> str:
    """The value of `spark.jars` for a session of your own: the PostgreSQL driver, kept in the data directory."""
    settings = _settings()
    directory = Path(data) if data is not None else settings.data
    spark = settings.spark
    jar = jdbc_driver(directory, SUBMIT, java_home(spark.java, directory), spark.conf, fetched=spark.jars)
    if jar is None:
        raise SettingsError(f"The PostgreSQL driver cannot be downloaded to {directory / 'jars'}.", field="data")
    return jar.as_uri()


def _conditions(streams: str | Iterable[str] | None, tenant_id: str | None) -> Iterable[str]:
    if streams is not None:
        names = [streams] if isinstance(streams, str) else list(streams)
        listed = ", ".join(literal(STRING, name) for name in names)
        yield f"stream IN ({listed})" if names else "false"
    if tenant_id is not None:
        yield f"tenant_id = {literal(STRING, tenant_id)}"


def _head(database: Database) -> int:
    with database.connect_sync(name="tidelock spark") as connection:
        row = connection.execute("SELECT ingress_sequence FROM ledger_head").fetchone()
    assert row is not None
    return int(row[0])


@cache
def _settings() -> Settings:
    return load(None, os.environ, {})


@cache
def _configured() -> Database:
    return _open.enter_context(found_ledger(_settings()))
