"""Delivery: at least once, in order for every key, whatever receivers do."""

import random
from dataclasses import replace

from tests.triggers.outboxes import TERMS, chains, create_trigger, delivering, fill, ids_by_key, statuses
from tests.triggers.receiver import Reply, receiving
from tidelock.ledger.database import Database
from tidelock.triggers.dispatch import Terms
from tidelock.triggers.retries import Schedule


def patient() -> Terms:
    """Terms under which nothing is given up for a while."""
    return replace(TERMS, schedule=Schedule([0.05] * 1000))


async def test_what_is_in_the_outbox_is_delivered_in_order_for_every_key(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, range(30), 10)
        fill(database, sent[:100])
        async with delivering(database):
            await receiver.until(lambda: len(receiver.accepted) >= 100)
            fill(database, sent[100:])
            await receiver.until(lambda: len(receiver.accepted) >= 300)
        assert receiver.by_key() == ids_by_key(sent)
        assert len(receiver.ids()) == 300
        assert statuses(database) == {"delivered": 300}


async def test_a_receiver_that_fails_at_random_gets_all_in_order(database: Database) -> None:
    chance = random.Random(7)
    async with receiving(lambda _: Reply(500 if chance.random() < 0.3 else 200)) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, range(20), 5)
        fill(database, sent)
        async with delivering(database, patient()):
            await receiver.until(lambda: len(receiver.accepted) >= 100, 30)
        assert receiver.by_key() == ids_by_key(sent)
        assert statuses(database) == {"delivered": 100}
