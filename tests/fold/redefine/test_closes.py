"""Closes under changed definitions: rebuilt counters are closed at the same places, and statements stay."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.fold.folding import differences
from tests.fold.redefine.definition_changes import BASE, FORMULAS, change, changed, fold_all, modelled, picture, send
from tests.fold.redefine.test_recomputation import recompute
from tests.model.samples import at
from tests.recording import sequencing
from tidelock.definitions import parse_definitions
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import STATEMENTS
from tidelock.usage.closing import WantedClose, close_periods
from tidelock.usage.statements import read_statements
from tidelock.views.rows import RowSelection


def close(database: Database, through: str, **more: Any) -> int | None:
    async def closed() -> int | None:
        async with sequencing(database) as sequencer:
            return await close_periods(sequencer, WantedClose(at(through), **more))

    return asyncio.run(closed())


def call(quantity: str, time: str, **more: Any) -> dict[str, Any]:
    at_ = f"2026-03-10T{time}Z" if ":" in time else f"{time}T00:00:00Z"
    fields = {"stream": "calls", "customerRef": "c", "data": {"region": "eu"}, **more}
    return {**fields, "quantity": quantity, "ts": at_}


def statements(database: Database, *columns: str) -> list[tuple[Any, ...]]:
    with database.connect_sync() as connection:
        chosen = ", ".join(columns)
        query = f"SELECT {chosen} FROM tidelock_tables.statements ORDER BY closed_sequence, metric, customer_ref"
        return connection.execute(query.encode()).fetchall()


def told_since(database: Database, toml: Any) -> list[Any]:
    """Statements with what has come since, by definitions."""

    async def read() -> list[Any]:
        async with await database.connect() as connection:
            definitions, selection = parse_definitions(toml), RowSelection(STATEMENTS)
            found = await read_statements(connection, definitions, selection, rows_max=100, bytes_max=1 << 20)
            return sorted(found.items, key=lambda item: str(item["value"]))

    return asyncio.run(read())


def test_a_changed_meter_is_rebuilt_with_every_close_at_its_own_sequence(spark: Spark, folded: Database) -> None:
    first = close(folded, "2026-03-11", metric="calls")
    send(folded, call("100", "13:45:00"), call("7", "2026-03-12"))
    fold_all(spark, folded, BASE)
    stated = statements(folded, "value", "total", "definition", "closed_sequence")
    assert {row[3] for row in stated} == {first}

    counting = changed(meters__calls={"aggregation": "count", "lateness": "48h"})
    change(spark, folded, counting)
    assert statements(folded, "value", "total", "definition", "closed_sequence") == stated, "statements stay"
    assert differences(picture(folded), modelled(folded, BASE, FORMULAS)) == {}
    assert recompute(spark, folded).ok
    # The value at the close by the definition of now, and how far it is from the stated one.
    since = told_since(folded, counting)
    assert [row["value"] for row in since] == ["4", "4.5"]
    assert [row["restated"] for row in since] == ["-3", "0.5"]
    assert [row["definition"] for row in since] == [row[2] for row in stated]
    # Of a meter that has other periods now there is nothing to compare.
    monthly = changed(counting, meters__calls={"period": "month"})
    assert {row["restated"] for row in told_since(folded, monthly)} == {None}

    send(folded, call("1", "2026-03-12", customerRef="new"), call("1", "13:50:00"), call("1", "09:00:00"))
    second = close(folded, "2026-03-13")
    fold_all(spark, folded, counting)
    assert differences(picture(folded), modelled(folded, BASE, FORMULAS)) == {}
    found = recompute(spark, folded)
    assert found.ok, found.differences
    later = [row for row in statements(folded, "closed_sequence", "metric", "customer_ref") if row[0] == second]
    assert ("calls", "new") in {row[1:] for row in later}

    # A meter that is gone takes its counters along, not what was stated of them.
    change(spark, folded, changed(counting, meters__calls=None))
    assert statements(folded, "closed_sequence", "metric", "customer_ref")[: len(stated)] == [
        (row[0], "calls", row[2])
        for row in statements(folded, "closed_sequence", "metric", "customer_ref")[: len(stated)]
    ]
    # One of that name that comes back is still closed.
    change(spark, folded, counting)
    assert differences(picture(folded), modelled(folded, BASE, FORMULAS)) == {}
    assert recompute(spark, folded, "calls").ok


def test_a_close_while_a_changed_definition_is_built_names_the_one_that_holds(spark: Spark, folded: Database) -> None:
    wanted = changed(meters__calls={"aggregation": "max"})
    closed: list[int | None] = []

    class Told(list[str]):
        def append(self, text: str) -> None:
            super().append(text)
            # The event that makes the new definition hold is recorded after this one, or before it.
            if not closed:
                closed.append(close(folded, "2026-03-11", metric="calls"))

    change(spark, folded, wanted, told=Told())
    assert closed[0] is not None
    fold_all(spark, folded, wanted)
    assert differences(picture(folded), modelled(folded, BASE, FORMULAS)) == {}
    assert len({row[0] for row in statements(folded, "definition")}) == 1
    assert recompute(spark, folded).ok


def test_another_time_of_closing_rebuilds_nothing(spark: Spark, folded: Database) -> None:
    before = picture(folded)
    told: list[str] = []
    timed = changed(meters__calls={"close": "72h"})
    stop = threading.Event()
    change(spark, folded, timed, told=told)
    stop.set()
    assert any("no definition" in text for text in told), told
    assert picture(folded).rows == before.rows
    with folded.connect_sync() as connection:
        due = connection.execute("SELECT metric, open_since FROM fold_closings").fetchall()
    assert due == [("calls", at("2026-03-10"))]
