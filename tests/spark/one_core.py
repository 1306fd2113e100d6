"""A process that folds a ledger on one core: `python -m tests.spark.one_core URL DATA DEFINITIONS RANGES`."""

import json
import sys
from pathlib import Path

from tests.spark.folding import Folding
from tidelock import settings
from tidelock.fold.session import Spark
from tidelock.ledger.database import Database


def main(url: str, data: str, toml: str, ranges: str) -> None:
    cut = [(lo, hi) for lo, hi in json.loads(ranges)]
    with (
        Spark(settings.Spark(master="local[1]", driver_memory=1 << 30), Path(data)) as spark,
        Folding(spark, Database(url), json.loads(toml)) as folding,
    ):
        folding.fold(cut)


if __name__ == "__main__":
    main(*sys.argv[1:])
