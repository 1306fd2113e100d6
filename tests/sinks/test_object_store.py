"""A lake in an object store: the same events in the same order, by Spark's `s3a` and read back by pyarrow.

Of no use to CI: Hadoop's client of S3 weighs half a gigabyte. Name a store and the jars, and run this file alone:

    S3_ENDPOINT=http://127.0.0.1:5000 S3_JARS=/path/to/jars pytest -m soak tests/sinks/test_object_store.py

`S3_JARS` has hadoop-aws of Spark's Hadoop and the AWS bundle that it asks for; moto's server is a store that suffices.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
import pytest

from tests.fold.folding import Folding
from tests.sinks.stores import fill, proven
from tests.sinks.test_replay_from_lake import PLAIN, Counting
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.settings.groups import LakeSettings, SparkSettings
from tidelock.sinks.lake import LakeSink
from tidelock.sinks.lakeranges import LakeRanges
from tidelock.sinks.lakereader import LakeReader
from tidelock.sinks.loader import Loading
from tidelock.sinks.source import LedgerSource
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

ENDPOINT = os.environ.get("S3_ENDPOINT", "")
BUCKET = "tidelock-test"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not ENDPOINT, reason="names no object store: S3_ENDPOINT, S3_JARS"),
]


@pytest.fixture(scope="module")
def s3(jars: Path) -> Iterator[Spark]:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    os.environ["AWS_ENDPOINT_URL"] = ENDPOINT
    conf = {
        "spark.hadoop.fs.s3a.endpoint": ENDPOINT,
        "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_DEFAULT_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    more = sorted(Path(os.environ["S3_JARS"]).glob("*.jar"))
    with Spark(SparkSettings(master="local[2]", driver_memory=1 << 30, conf=conf), jars, more) as started:
        yield started


async def test_a_lake_in_an_object_store_is_loaded_proven_repaired_and_folded(s3: Spark, database: Database) -> None:
    system, _ = pyarrow.fs.FileSystem.from_uri(f"s3://{BUCKET}/?allow_bucket_creation=true")
    system.create_dir(BUCKET)
    await fill(database, commits=4)
    lake = LakeSettings(path=f"s3a://{BUCKET}/{os.urandom(4).hex()}/lake", file_events=10)
    assert lake.path is not None
    cursor = Store(database, SCHEMA, "lake")
    load = Loading(LakeSink(s3, lake), cursor, LedgerSource(s3, cursor, database))
    try:
        load.open()
        while load.step(8):
            pass
        assert proven(database, LakeReader(lake.path)).ok
        assert len(LakeReader(lake.path).spans) == 2
        name = LakeReader(lake.path).spans[0].file
        system.delete_file(f"{lake.path.removeprefix('s3a://')}/events/{name}")
        assert "sequence 1 is missing" in proven(database, LakeReader(lake.path)).detail
        reached = 0
        while reached < load.position:
            reached = load.repair(reached, 5)
        assert proven(database, LakeReader(lake.path)).ok
        load.open()
        assert load.step(100) == 0, "it is there as a whole"
    finally:
        load.close()
    ranges = Counting(LakeRanges(s3, lake, database, 19, small_events=0))
    pictures = []
    for elsewhere in (None, ranges):
        with Folding(s3, database, PLAIN, small_events=0) as folding:
            folding.range_fold._source._elsewhere = elsewhere
            pictures.append(folding.fold([(0, 19)]))
    assert pictures[0] == pictures[1]
    assert ranges.asked == [True]
