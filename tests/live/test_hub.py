"""Subscriptions: from the rows of now to whatever becomes of them, without a gap and without a repeat."""

from __future__ import annotations

from tests.live.folding import TICK, folding, gone, hub_of, put, taken
from tests.live.histories import TABLE, expression_of
from tidelock.ledger.database import Database


async def test_first_come_the_rows_of_now_then_what_becomes_of_them(database: Database) -> None:
    with folding(database) as fold:
        fold.fold([put("a", i=1), put("b", i=5)], [put("c", i=2), put("a", i=3)])
        async with hub_of(database) as hub:
            subscription = await hub.subscribe(TABLE, expression_of({"i": {"_gt": 1}}))
            first = await taken(subscription, fold.time)
            assert [(event.operation, event.key, event.row["i"]) for event in first] == [
                ("INSERT", "b", 5), ("INSERT", "a", 3), ("INSERT", "c", 2),
            ]  # fmt: skip
            assert [event.source_timestamp for event in first] == [fold.time - TICK, fold.time, fold.time]
            fold.fold([put("a", i=4), put("b", i=0), gone("c")])
            then = await taken(subscription, fold.time)
            assert [(event.operation, event.key, event.fields) for event in then] == [
                ("UPDATE", "a", ("i",)), ("DELETE", "b", ("k",)), ("DELETE", "c", ("k",)),
            ]  # fmt: skip
            subscription.close()
