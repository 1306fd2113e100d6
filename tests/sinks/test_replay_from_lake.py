"""A fold that is done anew from the lake makes the same tables as one from the ledger, byte for byte."""

from pathlib import Path
from typing import Any

import pytest

from tests.fold.folding import Folding
from tests.recording import record, sequencing
from tests.sinks.stores import TestLake, loading
from tidelock.errors import Difference, SettingsError
from tidelock.postgres.database import Database
from tidelock.settings.groups import LakeSettings
from tidelock.sinks.lakeranges import LakeRanges
from tidelock.spark.runtime import Spark

PLAIN = {
    "meters": {
        "calls": {},
        "calls_last": {"stream": "calls", "aggregation": "last", "where": {"op": {"_eq": "upsert"}}},
    }
}
MEMBERS = {
    "meters": {"calls": {"value": "data.used", "group_by": ["data.region"]}},
    "streams": {"devices": {"key": "id", "columns": {"id": "bigint", "level": "decimal(30,12)", "more": "json"}}},
}
FLAT = {
    "meters": {"calls": {"value": "data.used", "group_by": ["data.region"]}},
    "streams": {"others": {"key": "id", "columns": {"id": "string"}}},
}


async def fill(database: Database) -> None:
    async with sequencing(database) as sequencer:
        for number in range(30):
            data = {"used": f"{number}.{number:04}", "region": ["eu", 1.50, None, {"x": 1}][number % 4]}
            device = {"id": number % 7, "level": 0.1 + number, "more": {"a": [1.10, number]}}
            await record(
                sequencer,
                {"stream": "calls", "customerRef": "c", "quantity": f"{number}.5", "data": data},
                {
                    "stream": "devices",
                    "customerRef": "c",
                    "data": device,
                    "op": "delete" if number % 11 == 5 else "upsert",
                },
                {"stream": "others", "data": {"id": "x", "n": 1.10}},
            )


@pytest.mark.parametrize("toml", [PLAIN, MEMBERS, FLAT], ids=["envelope", "members", "flat"])
async def test_the_tables_and_changes_are_the_same(
    spark: Spark, database: Database, tmp_path: Path, toml: dict[str, Any]
) -> None:
    await fill(database)
    store = TestLake(tmp_path, file_events=25)
    with loading(spark, database, store) as load:
        while load.step(1000):
            pass
    # The last of two ranges was not loaded yet.
    lake = Counting(LakeRanges(spark, store.settings, database, 60, small_events=0))
    pictures = []
    for elsewhere in (None, lake):
        with Folding(spark, database, toml, small_events=0) as folding:
            folding.range_fold._source._elsewhere = elsewhere
            pictures.append(folding.fold([(0, 60), (60, 90)]))
    from_ledger, from_lake = pictures
    assert from_lake == from_ledger
    assert from_ledger.rows
    assert lake.asked == [True, False]
    if toml is PLAIN:
        distrusts_a_lake_that_is_not_whole(spark, database, store)


def distrusts_a_lake_that_is_not_whole(spark: Spark, database: Database, store: TestLake) -> None:
    def ask(lo: int, hi: int) -> bool:
        found = Counting(LakeRanges(spark, store.settings, database, 90, small_events=0))
        with Folding(spark, database, PLAIN, small_events=0) as folding:
            folding.range_fold._source._elsewhere = found
            folding.fold([(lo, hi)])
        return found.asked == [True]

    store.remove(17)
    with pytest.raises(Difference, match="has 29 events from sequence 1 through 30, the ledger 30; `tidelock verify`"):
        ask(0, 30)
    last = sorted(store.path.glob("events/*.parquet"))[-1]
    last.unlink()
    assert not ask(0, 90), "it is shorter than the cursor says"


class Counting:
    """The lake, with a list of what it was asked for and had."""

    def __init__(self, lake: LakeRanges) -> None:
        self._lake = lake
        self.asked: list[bool] = []

    def __call__(self, *given: Any) -> Any:
        found = self._lake.read(*given)
        self.asked.append(found is not None)
        return found


def test_there_must_be_a_lake(tmp_path: Path) -> None:
    for settings, through in (
        (LakeSettings(), 5),
        (LakeSettings(path=str(tmp_path)), 0),
        (LakeSettings(path=str(tmp_path)), 5),
    ):
        with pytest.raises(SettingsError, match="no lake to replay from"):
            LakeRanges(None, settings, None, through)  # type: ignore[arg-type]
