"""The outbox: appended with what was found, once, in order; listed, sent again, and in the end removed."""

import threading
from typing import Any

import msgspec
import psycopg
import pytest

from tests.budgets import HANG_S
from tests.triggers.outboxes import asked, chains, create_trigger, fill, transition
from tidelock.postgres.database import Database
from tidelock.triggers.outbox import (
    SHARDS,
    DeliveryRow,
    Depth,
    Status,
    Transition,
    append,
    list_deliveries,
    prune,
    read_attempts,
    read_depth,
    redeliver,
)

pytestmark = pytest.mark.check

BIG = (1, "big")
DAY = 86_400 * 10**9


def test_transitions_are_appended_in_their_order_and_data_stays_as_it_is(database: Database) -> None:
    data = '{"b": 1.10, "a":"\\u00e9é\\"客","n":123456789012345678901234567890, "x":{"y" : [ ]}}'
    sent = [transition(BIG, key, time)._replace(data=data.encode()) for time in (1, 2) for key in ("é", 'k"1', "")]
    assert fill(database, sent) == 6
    found = asked(
        database,
        "SELECT trigger_id, tenant_id, key, event_id, event_type, source_timestamp, data::text, shard FROM outbox"
        " ORDER BY position",
    )
    assert [(*row[:6], row[6].encode()) for row in found] == [tuple(one) for one in sent]
    assert [row[7] for row in found] == [one.shard for one in sent]
    assert {row[0] for row in asked(database, "SELECT shard FROM outbox_shards")} == set(range(SHARDS))


def test_a_chain_has_one_shard_for_ever_and_chains_spread_over_all() -> None:
    assert [transition(BIG, key, 1).shard for key in ("a", "b", "客")] == [2, 8, 6]
    assert transition(BIG, "a", 1).shard == transition(BIG, "a", 2).shard
    assert {transition(BIG, key, 1).shard for key in range(300)} == set(range(SHARDS))


def test_what_is_there_is_not_appended_again(database: Database) -> None:
    sent = chains(BIG, "abc", 2)
    assert fill(database, sent) == 6
    assert fill(database, [*sent, transition(BIG, "a", 3)]) == 1


def test_many_are_appended_in_pieces(database: Database) -> None:
    sent = chains(BIG, range(4000), 3)
    assert fill(database, sent) == 12_000
    assert [row[0] for row in asked(database, "SELECT event_id FROM outbox ORDER BY position")] == [
        one.event_id for one in sent
    ]


def test_a_transaction_that_is_rolled_back_leaves_and_tells_nothing(database: Database) -> None:
    with database.connect_sync() as listening, database.connect_sync(autocommit=False) as connection:
        listening.execute("LISTEN tidelock_outbox")
        append(connection, chains(BIG, "ab", 2))
        connection.rollback()
        assert list(listening.notifies(timeout=0.2)) == []
        append(connection, chains(BIG, "ab", 2) + chains((7, "other"), "ab", 2))
        connection.commit()
        told = [notification.payload for notification in listening.notifies(timeout=HANG_S, stop_after=2)]
    assert sorted(told) == ["1", "7"]


def test_what_is_appended_later_is_seen_later_so_that_readers_miss_nothing(database: Database) -> None:
    appended = threading.Event()

    def append_second() -> None:
        fill(database, [transition(BIG, "second", 1)])
        appended.set()

    with database.connect_sync(autocommit=False) as connection:
        append(connection, [transition(BIG, "first", 1)])
        other = threading.Thread(target=append_second)
        other.start()
        assert not appended.wait(0.3), "it would be seen before the first, and a reader would never look back"
        connection.commit()
    other.join()
    assert [row[0] for row in asked(database, "SELECT key FROM outbox ORDER BY position")] == ["first", "second"]


def settle(database: Database, ids: list[str], status: str, age: str = "0s") -> None:
    with database.connect_sync() as connection:
        connection.execute(
            "UPDATE outbox SET status = %s, attempts = attempts + 1, failures = 5, settled_at = now() - %s::interval,"
            " queued_at = now() - %s::interval WHERE event_id = ANY(%s)",
            (status, age, age, ids),
        )
        connection.execute(
            "INSERT INTO delivery_attempts SELECT id, attempts, now(), 0.1, 'failed', 500, 'no' FROM outbox"
            " WHERE event_id = ANY(%s)",
            (ids,),
        )


async def listed(connection: psycopg.AsyncConnection[Any], status: Status | None = None) -> list[DeliveryRow]:
    return await list_deliveries(connection, "big", status=status, limit=100)


async def test_deliveries_are_listed_by_status_newest_first_page_by_page(database: Database) -> None:
    sent, _ = _two_triggers(database)
    ids = [one.event_id for one in sent]
    settle(database, ids[:2], "delivered")
    settle(database, ids[2:3], "dead")
    async with await database.connect() as connection:
        assert [row.event_id for row in await listed(connection)] == ids[::-1]
        assert [row.event_id for row in await listed(connection, "delivered")] == [ids[1], ids[0]]
        (dead,) = await listed(connection, "dead")
        assert (dead.key, dead.attempts, dead.outcome, dead.http_status, dead.response) == ("a", 1, "failed", 500, "no")
        first = await list_deliveries(connection, "big", status=None, limit=3)
        second = await list_deliveries(connection, "big", status=None, limit=3, before=first[-1].position)
        assert [row.event_id for row in first + second] == ids[::-1]
        found = await read_attempts(connection, "big", ids[2])
        assert found is not None
        data, attempts = found
        assert msgspec.json.decode(data) == {"id": "a", "n": 2}
        assert [(attempt.number, attempt.outcome) for attempt in attempts] == [(1, "failed")]
        assert await read_attempts(connection, "other", ids[2]) is None


async def test_the_dead_are_queued_again_in_their_order_after_what_is_pending(database: Database) -> None:
    sent, other = _two_triggers(database)
    ids = [one.event_id for one in sent]
    settle(database, [*ids[:4], other[0].event_id], "dead")
    async with await database.connect() as connection:
        assert await redeliver(connection, "big") == 4
        assert await redeliver(connection, "big") == 0
        assert await redeliver(connection, "nobody") == 0
        assert [row.event_id for row in await listed(connection, "pending")][::-1] == [*ids[4:], *ids[:4]]
        assert (await read_depth(connection)).dead == 1
    rows = asked(database, "SELECT failures, attempts, next_attempt_at, settled_at FROM outbox WHERE trigger_id = 1")
    assert {row[0] for row in rows} == {0}, "they begin anew"
    assert sorted(row[1] for row in rows) == [0, 0, 1, 1, 1, 1], "and their history goes on"
    assert {row[2:] for row in rows} == {(None, None)}


async def test_some_are_queued_again_by_id_delivered_ones_too_pending_ones_not(database: Database) -> None:
    sent, other = _two_triggers(database)
    ids = [one.event_id for one in sent]
    settle(database, ids[:1], "delivered")
    settle(database, [ids[1], ids[2], other[0].event_id], "dead")
    async with await database.connect() as connection:
        wanted = [ids[1], ids[0], ids[5], other[0].event_id, "0" * 32]
        assert await redeliver(connection, "big", wanted) == 2
        assert [row.event_id for row in await listed(connection, "pending")][::-1] == [*ids[3:], ids[0], ids[1]]


async def test_the_depth_is_what_is_pending_and_how_long_the_oldest_waits(database: Database) -> None:
    async with await database.connect() as connection:
        assert await read_depth(connection) == Depth(0, 0, 0.0)
        sent, _ = _two_triggers(database)
        settle(database, [sent[0].event_id], "dead", "9s")
        settle(database, [sent[1].event_id], "pending", "7s")
        depth = await read_depth(connection)
    assert (depth.pending, depth.dead) == (7, 1)
    assert 7 <= depth.oldest_pending_s < 7 + HANG_S


async def test_what_was_settled_long_ago_is_removed_with_its_history(database: Database) -> None:
    sent, _ = _two_triggers(database)
    ids = [one.event_id for one in sent]
    settle(database, ids[:2], "delivered", "2 days")
    settle(database, ids[2:3], "dead", "2 days")
    settle(database, ids[3:4], "pending", "2 days")
    settle(database, ids[4:5], "delivered", "1 hour")
    async with await database.connect() as connection:
        assert await prune(connection, DAY, batch=2) == 3
        assert [row.event_id for row in await listed(connection)] == ids[3:][::-1]
        assert await prune(connection, DAY) == 0
    assert asked(database, "SELECT count(*) FROM delivery_attempts") == [(2,)]


async def test_what_triggers_that_are_gone_have_left_is_removed(database: Database) -> None:
    sent, _ = _two_triggers(database)
    settle(database, [sent[0].event_id], "delivered")
    with database.connect_sync() as connection:
        connection.execute("DELETE FROM triggers WHERE name = 'big'")
    async with await database.connect() as again:
        assert (await read_depth(again)).pending == 2, "nobody waits for them"
        assert await prune(again, DAY, batch=4) == 6
    assert asked(database, "SELECT trigger_id, count(*) FROM outbox GROUP BY 1") == [(2, 2)]
    assert asked(database, "SELECT count(*) FROM delivery_attempts") == [(0,)]


def _two_triggers(database: Database) -> tuple[list[Transition], list[Transition]]:
    assert create_trigger(database, "big", "http://r/") == 1
    assert create_trigger(database, "other", "http://r/") == 2
    sent, other = chains(BIG, "ab", 3), chains((2, "other"), "a", 2)
    fill(database, [*sent, *other])
    return sent, other
