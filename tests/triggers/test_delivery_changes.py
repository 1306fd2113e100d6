"""What changes while webhooks are delivered: triggers, secrets, processes, the database; and who is not held up."""

import asyncio
import random
from dataclasses import replace

from tests.recording import sequencing
from tests.triggers import receiver as replies
from tests.triggers.outboxes import (
    PATIENT,
    asked,
    assert_complete,
    chains,
    create_trigger,
    delivering,
    fill,
    ids_by_key,
    settled,
    statuses,
    transition,
    until,
)
from tests.triggers.receiver import Reply, receiving
from tidelock.postgres.database import Database
from tidelock.triggers import registry
from tidelock.triggers.outbox import Transition
from tidelock.triggers.signatures import generate_secret, verify


def change(database: Database, query: str, *values: object) -> None:
    with database.connect_sync() as connection:
        connection.execute(query.encode(), values)


async def test_a_trigger_is_sent_where_it_points_now_and_signed_as_it_is_now(database: Database) -> None:
    secret = generate_secret()
    async with receiving() as first, receiving() as second:
        trigger = create_trigger(database, "big", first.url), "big"
        async with delivering(database) as delivery:
            fill(database, [transition(trigger, "a", 1)])
            await first.until(lambda: first.accepted)
            change(database, "UPDATE trigger_secrets SET secrets = %s", [secret])
            change(database, "UPDATE triggers SET webhook = %s", second.url)
            # What was read before it heard of the change is still sent to the first.
            await second.until(
                lambda: [lane.target.webhook for lane in delivery.dispatch.lanes.values()] == [second.url]
            )
            fill(database, [transition(trigger, "a", 2)])
            await second.until(lambda: second.accepted)
        assert verify(second.accepted[0].body, second.accepted[0].headers, secret)
        assert len(first.requests) == 1


async def others_are_sent(database: Database) -> None:
    """Twice in a row something of another trigger, so what was not sent by then was not to be sent."""
    async with receiving() as receiver:
        trigger = create_trigger(database, "barrier", receiver.url), "barrier"
        for time in (1, 2):
            fill(database, [transition(trigger, "a", time)])
            await receiver.until(lambda time=time: len(receiver.accepted) == time)  # type: ignore[misc]
        change(database, "DELETE FROM triggers WHERE name = 'barrier'")


async def test_a_disabled_trigger_sends_nothing_and_continues_where_it_was(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, "ab", 3)
        change(database, "UPDATE triggers SET enabled = false")
        fill(database, sent)
        async with delivering(database):
            await others_are_sent(database)
            assert not receiver.requests
            change(database, "UPDATE triggers SET enabled = true")
            await receiver.until(lambda: len(receiver.accepted) == 6)
        assert_complete(receiver, sent)


async def test_what_was_disabled_or_ended_sends_nothing_although_its_event_is_yet_to_be_evaluated(
    database: Database,
) -> None:
    async with (
        receiving() as receiver,
        sequencing(database) as sequencer,
        delivering(database) as delivery,
        await database.connect() as connection,
    ):
        names = "disabled", "ended", "kept"
        triggers = [(create_trigger(database, name, receiver.url), name) for name in names]
        known = await registry.read(connection, "disabled", None)
        assert await registry.change(sequencer, known, replace(known.trigger, enabled=False))
        assert await registry.delete(sequencer, await registry.read(connection, "ended", None))
        await receiver.until(lambda: [lane.target.name for lane in delivery.dispatch.lanes.values()] == ["kept"])
        fill(database, [transition(trigger, "a", 1) for trigger in triggers])
        await receiver.until(lambda: receiver.accepted)
        await others_are_sent(database)
    assert [request.payload["trigger_name"] for request in receiver.requests] == ["kept"]


async def test_what_a_deleted_trigger_left_goes_to_nobody(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        fill(database, chains(trigger, "ab", 3))
        change(database, "DELETE FROM triggers")
        change(database, "DELETE FROM trigger_secrets")
        change(database, "DELETE FROM trigger_definitions")
        async with delivering(database):
            again = create_trigger(database, "big", receiver.url), "big"
            assert again != trigger
            fill(database, [transition(again, "c", 1)])
            await receiver.until(lambda: receiver.accepted)
            await others_are_sent(database)
        assert [request.payload["data"]["id"] for request in receiver.requests] == ["c"]


async def test_processes_share_the_shards_and_none_is_delivered_twice(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, range(60), 4)
        async with delivering(database) as first, delivering(database) as second, delivering(database) as third:
            await shared(database, 4, 6, 6)
            fill(database, sent)
            await receiver.until(lambda: len(receiver.accepted) >= len(sent))
        delivered = [one.dispatch.attempts["delivered"] for one in (first, second, third)]
        assert sum(delivered) == len(sent)
        assert all(delivered)
        assert_complete(receiver, sent)
        assert len(receiver.requests) == len(sent)


async def test_one_that_joins_gets_a_share_and_one_that_leaves_is_replaced_at_once(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent, stop = list[Transition](), asyncio.Event()

        async def feed() -> None:
            while not stop.is_set():
                time = len(sent) // 50 + 1
                sent.extend(batch := [transition(trigger, key, time) for key in range(50)])
                await asyncio.to_thread(fill, database, batch)
                await receiver.until(lambda: len(receiver.accepted) >= len(sent) - 50)

        async with delivering(database):
            feeding = asyncio.create_task(feed())
            await shared(database, 16)
            async with delivering(database):
                await shared(database, 8, 8)
                async with delivering(database):
                    await shared(database, 4, 6, 6)
                await shared(database, 8, 8)
            await shared(database, 16)
            stop.set()
            await feeding
            await receiver.until(lambda: len(receiver.ids()) >= len(sent))
        assert_complete(receiver, sent)
        assert len(receiver.requests) == len(sent), "nobody was killed, so nothing is repeated"


async def test_the_leases_of_one_that_ended_without_a_word_are_taken_over(database: Database) -> None:
    async with receiving(lambda _: replies.HANG) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, range(10), 2)
        fill(database, sent)
        async with delivering(database, timeout_s=60, lease_s=0.5, killed=True) as first:
            await receiver.until(lambda: receiver.requests)
            assert first.dispatch.under_way
        await shared(database, 16)
        receiver.behave = lambda _: Reply()
        async with delivering(database):
            await receiver.until(lambda: len(receiver.accepted) == len(sent))
        assert_complete(receiver, sent)


async def test_a_process_whose_leases_are_not_renewed_sends_nothing_more(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        async with delivering(database, lease_s=0.5) as delivery:
            await shared(database, 16)
            with database.connect_sync(autocommit=False) as connection:
                connection.execute("LOCK TABLE outbox_owners")
                await receiver.until(lambda: not delivery._leases.valid)
                fill(database, [transition(trigger, "a", 1)])
                await receiver.until(lambda: any(lane.ready for lane in delivery.dispatch.lanes.values()))
                assert not delivery._leases.valid
                assert not receiver.requests
                connection.rollback()
            await receiver.until(lambda: receiver.accepted)


async def test_connections_that_are_lost_hold_up_but_lose_nothing(database: Database) -> None:
    chance = random.Random(3)
    async with receiving(lambda _: Reply(500 if chance.random() < 0.2 else 200)) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, range(20), 20)
        fill(database, sent)
        async with delivering(database, PATIENT):
            for turn in range(1, 4):
                await receiver.until(lambda turn=turn: len(receiver.requests) >= 50 * turn)  # type: ignore[misc]
                asked(
                    database,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'tidelock webh%' AND datname = current_database()",
                )
            await settled(database, len(sent))
        assert receiver.by_key() == ids_by_key(sent)
        assert statuses(database) == {"delivered": len(sent)}


async def test_a_chain_that_waits_holds_up_no_other_however_long_it_is(database: Database) -> None:
    terms = replace(PATIENT, rows_max=10)
    async with receiving(lambda request: Reply(400 if request.payload["data"]["id"] < 50 else 200)) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        fill(database, chains(trigger, range(50), 20))
        fine = chains(trigger, range(50, 60), 5)
        fill(database, fine)
        async with delivering(database, terms):
            await receiver.until(lambda: len(receiver.accepted) == 50)
        assert receiver.by_key() == ids_by_key(fine)


async def test_dead_endpoints_hold_up_no_other(database: Database) -> None:
    """Twenty that hang for as long as it takes, with more than enough for each."""
    async with receiving() as receiver, receiving(lambda _: replies.HANG) as hanging:
        trigger = create_trigger(database, "big", receiver.url), "big"
        for number in range(20):
            dead = create_trigger(database, f"dead{number}", f"{hanging.url}/{number}"), f"dead{number}"
            fill(database, chains(dead, range(40), 2))
        async with delivering(database, PATIENT, timeout_s=600, killed=True) as delivery:
            await hanging.until(lambda: len({request.path for request in hanging.requests}) == 20)
            for number in range(20):
                await asyncio.to_thread(fill, database, [transition(trigger, number, 1)])
                await receiver.until(lambda number=number: len(receiver.accepted) > number)  # type: ignore[misc]
            await settled(database, 20)
            assert delivery.dispatch.attempts["timeout"] == 0, "none of them was given up for that"
        assert statuses(database) == {"pending": 20 * 80, "delivered": 20}


async def shared(database: Database, *shares: int) -> None:
    """Wait until processes have so many shards each."""
    query = "SELECT count(*)::integer FROM outbox_shards WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1"
    await until(database, query, lambda found: found == list(shares))
