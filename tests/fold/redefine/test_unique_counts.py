"""Meters that count distinct values under changed definitions: the texts they have seen move with their counters."""

from __future__ import annotations

import threading

from tests.fold.redefine.definition_changes import change, changed, fold_all, send
from tests.fold.redefine.test_recomputation import recompute
from tidelock.fold.redefine import past
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark


def test_a_changed_meter_takes_the_texts_along(spark: Spark, folded: Database) -> None:
    unique = changed(meters__calls={"aggregation": "unique_count", "value": "data.region"})
    change(spark, folded, unique)
    assert recompute(spark, folded).ok
    kept = texts(folded)
    assert {key.split('"]')[0].rsplit('"', 1)[1] for key in kept} == {"eu", "us"}
    # What comes after the swap is counted with what was there before.
    call = {"stream": "calls", "customerRef": "c", "quantity": 1, "ts": "2026-03-10T13:45:00Z"}
    send(folded, {**call, "data": {"region": "eu"}}, {**call, "data": {"region": "new"}, "resourceId": "r"})
    fold_all(spark, folded, unique)
    assert recompute(spark, folded).ok
    assert len(texts(folded)) == len(kept) + 2, "of the counter and of its group"
    with folded.connect_sync() as connection:
        connection.execute("""UPDATE tidelock_tables."meters$distinct" SET in_value = NOT in_value""")
    assert {finding.table for finding in recompute(spark, folded).differences} == {"meters$distinct"}
    # As of an earlier event the counters are folded again.
    values: dict[str, str] = {}
    catalog = past.read_past(folded, 1)
    stop = threading.Event()
    with (
        past.counters_as_of(
            spark, folded, catalog, ["calls"], 3, range_events_max=2, stop=stop, progress=lambda done, end: None
        ) as schema,
        folded.connect_sync() as connection,
    ):
        for customer, value in connection.execute(f"SELECT customer_ref, value FROM {schema}.counters".encode()):
            values[customer] = str(value.normalize())
    assert values == {"c": "1"}
    change(spark, folded, changed(unique, meters__calls={"aggregation": "sum", "value": "quantity"}))
    assert texts(folded) == []
    assert recompute(spark, folded).ok


def texts(database: Database) -> list[str]:
    with database.connect_sync() as connection:
        return [key for (key,) in connection.execute("""SELECT "$key" FROM tidelock_tables."meters$distinct" """)]
