"""`bench corrections`, with numbers so small that its figures mean nothing: it folds, corrects and checks."""

from __future__ import annotations

from bench.corrections import folding
from bench.runs import Workbench
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark


def test_corrected_counters_are_those_of_the_ledger(spark: Spark, database: Database) -> None:
    with folding(Workbench(spark, database, Settings()), "corrected", 12_000, 3) as ledger:
        assert ledger.fold() > 0
        assert ledger.correct(1) > 0
        assert ledger.correct(500) > 0
        assert all(ledger.peaks())
