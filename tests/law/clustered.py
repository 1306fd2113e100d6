"""A process that folds ledgers, and loads one, on a cluster: `python -m tests.law.clustered MASTER DATA`.

Takes one ledger a line, as JSON, and answers each line when it is folded.
"""

import json
import sys
from pathlib import Path

from bench.standalone import CONF
from tests.fold.folding import Folding
from tests.sinks.stores import TestLake, loading
from tidelock.postgres.database import Database
from tidelock.settings.groups import SparkSettings
from tidelock.spark.runtime import Spark


def main(master: str, data: str) -> None:
    with Spark(SparkSettings(master=master, driver_memory=1 << 30, conf=CONF), Path(data)) as spark:
        # Executors read whatever there is: that is what a cluster is for.
        for line in sys.stdin:
            wanted = json.loads(line)
            database = Database(wanted["url"])
            with Folding(spark, database, wanted["toml"], small_events=1) as folding:
                folding.fold([(lo, hi) for lo, hi in wanted["ranges"]])
            if "lake" in wanted:
                with loading(spark, database, TestLake(Path(wanted["lake"]), file_events=50), small_events=0) as load:
                    while load.step(100):
                        pass
            print(len(spark.session.sparkContext._jsc.sc().statusTracker().getExecutorInfos()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
