"""A process that loses its Spark, starts another and folds a ledger by it, on one core.

`python -m tests.spark.one_core URL DATA DEFINITIONS RANGES`
"""

import json
import os
import signal
import sys
from pathlib import Path

from tests.fold.folding import Folding
from tidelock.postgres.database import Database
from tidelock.settings.groups import SparkSettings
from tidelock.spark.runtime import Spark


def main(url: str, data: str, toml: str, ranges: str) -> None:
    wanted = SparkSettings(master="local[1]", driver_memory=1 << 29)
    spark = Spark(wanted, Path(data))
    lose(spark)
    spark.restart()
    assert spark.alive()
    assert not spark.lost(error_of(spark, "SELECT 1 / 0"))
    with Folding(spark, Database(url), json.loads(toml)) as folding:
        folding.fold([(lo, hi) for lo, hi in json.loads(ranges)])
    print(spark.session.sql("SELECT 3 AS three").toArrow().to_pylist())
    stop(spark)


def lose(spark: Spark) -> None:
    """As somebody does who kills its JVM."""
    assert spark.session.sql("SELECT 1").collect()
    os.kill(spark.pid, signal.SIGKILL)
    assert spark.lost(error_of(spark, "SELECT 2"))
    assert not spark.alive()


def error_of(spark: Spark, query: str) -> Exception:
    try:
        spark.session.sql(query).collect()
    except Exception as error:
        return error
    raise AssertionError(f"{query} does not fail")


def stop(spark: Spark) -> None:
    jvm = spark.pid
    spark.stop()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        os.kill(jvm, 0)
    except ProcessLookupError:
        print("stopped")


if __name__ == "__main__":
    main(*sys.argv[1:])
