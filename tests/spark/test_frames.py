"""The ledger as a DataFrame has what was recorded, exactly."""

from decimal import Decimal
from typing import Any

import pytest

from tests.recording import record, rows, sequencing
from tidelock.errors import SettingsError
from tidelock.postgres.database import Database
from tidelock.spark import ledger
from tidelock.spark.runtime import Spark

EVENTS: list[dict[str, Any]] = [
    {"stream": "calls", "customerRef": "a'b\\c", "ts": "2026-01-01T00:00:00.123456789Z", "quantity": "0.000000001"},
    {"stream": "calls", "customerRef": "b", "ts": "2026-01-02T00:00:00Z", "quantity": "999999999999999999"},
    {"stream": "it's", "tenantId": "x", "ts": "2026-01-03T00:00:00Z", "data": {"b": 1, "a": [1.50]}},
    {"stream": "other", "tenantId": "x", "ts": "2026-01-04T00:00:00Z"},
]


async def test_every_column_is_what_the_ledger_has(spark: Spark, database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, *EVENTS[:2])
        await record(sequencer, *EVENTS[2:])
    frame = ledger(spark.session, database.url)
    types = dict(frame.dtypes)
    assert types.pop("quantity") == "decimal(38,9)"
    assert types.pop("content_hash") == "binary"
    assert {types.pop(name) for name in list(types) if name.endswith(("_at", "_sequence", "_timestamp", "_id"))
            and types[name] == "bigint"} == {"bigint"}  # fmt: skip
    assert set(types.values()) == {"string"}
    found = frame.orderBy("ingress_sequence").collect()
    names = ", ".join(column if column != "data" else "data::text" for column in frame.columns)
    kept = await rows(database, f"SELECT {names} FROM events ORDER BY ingress_sequence")
    assert [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in found] == kept
    assert found[0].quantity == Decimal("0.000000001")
    assert found[2].data == '{"b":1,"a":[1.5]}'


async def test_it_is_narrowed_in_the_database(spark: Spark, database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, *EVENTS)
        fixed = ledger(spark.session, database.url)
        await record(sequencer, {"stream": "later", "ts": "2026-01-05T00:00:00Z"})

    def sequences(**narrowed: object) -> list[int]:
        frame = ledger(spark.session, database.url, **narrowed)  # type: ignore[arg-type]
        return sorted(row.ingress_sequence for row in frame.select("ingress_sequence").collect())

    assert fixed.count() == 4, "the end is fixed by the call"
    assert sequences() == [1, 2, 3, 4, 5]
    assert sequences(streams="it's") == [3]
    assert sequences(streams=["calls", "other"]) == [1, 2, 4]
    assert sequences(streams=[]) == []
    assert sequences(tenant_id="x") == [3, 4]
    assert sequences(after=1, through=3, partitions=5) == [2, 3]
    assert sequences(after=9) == []
    assert ledger(spark.session, database.url).where("customer_ref = 'b'").count() == 1


async def test_an_empty_ledger_is_an_empty_frame(spark: Spark, database: Database) -> None:
    assert ledger(spark.session, database.url).count() == 0


async def test_a_session_without_the_driver_is_shown_how_to_get_it(
    spark: Spark, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where `ledger` looks: snippets of the docs import the module a second time.
    monkeypatch.setitem(ledger.__globals__, "has_jdbc", lambda _: False)
    with pytest.raises(SettingsError, match=r"tidelock\.spark\.jars\(\)"):
        ledger(spark.session, database.url)
