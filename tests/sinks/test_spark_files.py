"""A lake behind a URL, through Spark's own file systems: the same files, published by renames that replace.

`file:` is the one of them that every machine has. An object store goes the same way but for the last step, where it
copies: its objects are there as a whole, or not at all. There is none here to try that on.
"""

import re
from pathlib import Path

import pytest

from tests.fold.folding import Folding
from tests.sinks.stores import TestLake, fill, loading
from tests.sinks.test_loading import recorded
from tests.sinks.test_replay_from_lake import PLAIN, Counting
from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.database import Database
from tidelock.sinks import files
from tidelock.sinks.files import SparkFiles, local_path
from tidelock.sinks.lake import LakeSink
from tidelock.sinks.lakeranges import LakeRanges
from tidelock.sinks.loader import Sink
from tidelock.spark.runtime import Spark

FILE_EVENTS = 10


class SparkLake(TestLake):
    """The same directory, behind its URL."""

    def sink(self, spark: Spark) -> Sink:
        sink = LakeSink(spark, self.settings)
        sink.files = SparkFiles(spark, f"file://{self.path}")
        return sink


async def test_a_lake_behind_a_url_is_loaded_proven_repaired_and_folded(
    spark: Spark, database: Database, tmp_path: Path
) -> None:
    await fill(database, commits=4)
    store = SparkLake(tmp_path / "a läke", file_events=FILE_EVENTS)
    with loading(spark, database, store) as load:
        while load.step(8):
            pass
        assert store.read() == await recorded(database)
        assert store.prove(database).ok
        assert names(store) == [f"events-{first:019}-{first + 9:019}.parquet" for first in (1, 11)]
        assert not list((store.path / "_staging").iterdir())
        store.remove(9)
        assert "sequence 9 is missing" in store.prove(database).detail
        assert load.repair(8, 3) == 19, "files as a whole"
    assert store.prove(database).ok
    with loading(spark, database, store) as load:
        assert (load.position, load.step(100)) == (19, 0), "it is there as a whole"
    lake = Counting(LakeRanges(spark, store.settings, database, 19, small_events=0))
    pictures = []
    for elsewhere in (None, lake):
        with Folding(spark, database, PLAIN, small_events=0) as folding:
            folding.range_fold._source._elsewhere = elsewhere
            pictures.append(folding.fold([(0, 19)]))
    assert pictures[0] == pictures[1]
    assert lake.asked == [True]


async def test_where_a_rename_would_remove_first_files_are_copied_over(
    spark: Spark, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_OBJECT_STORES", re.compile("file:"))
    await fill(database, commits=2)
    store = SparkLake(tmp_path, file_events=FILE_EVENTS)
    with loading(spark, database, store) as load:
        while load.step(5):
            pass
    assert store.read() == await recorded(database)
    assert not list((store.path / "_staging").iterdir())


def names(store: TestLake) -> list[str]:
    """Files, without the checksums that this file system hides beside them."""
    return sorted(path.name for path in store.path.glob("events/[!.]*"))


def test_a_place_that_does_not_answer_is_named(spark: Spark, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable, match=r"the lake at file:.* does not respond"):
        SparkFiles(spark, (tmp_path / "file").as_uri()).make()
    with pytest.raises(Unreachable, match=r"the lake at nowhere://there does not respond: .*nowhere"):
        SparkFiles(spark, "nowhere://there").make()


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/srv/lake", "/srv/lake"),
        ("file:///srv/lake", "/srv/lake"),
        ("file:/srv/a%20lake", "/srv/a lake"),
        ("file://localhost/srv/lake", "/srv/lake"),
        ("s3a://bucket/lake", None),
        ("hdfs://name:8020/lake", None),
    ],
)
def test_a_path_or_a_file_url_is_a_directory_here(place: str, path: str | None) -> None:
    assert local_path(place) == (None if path is None else Path(path))


def test_a_file_url_of_another_machine_is_refused() -> None:
    with pytest.raises(SettingsError, match="names the host srv"):
        local_path("file://srv/lake")
