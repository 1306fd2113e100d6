"""Delivery: at least once, in order for every key, whatever receivers do."""

import asyncio
import json
import random
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
import standardwebhooks
import svix.webhooks

from tests.javascript import CLIENTS, need_javascript
from tests.triggers import receiver as replies
from tests.triggers.outboxes import (
    PATIENT,
    SECRET,
    TERMS,
    Disabled,
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
)
from tests.triggers.receiver import Reply, Request, receiving
from tidelock.instants import parse_rfc3339
from tidelock.postgres.database import Database
from tidelock.triggers.attempts import Schedule
from tidelock.triggers.outbox import list_deliveries, read_attempts, redeliver
from tidelock.triggers.signatures import InvalidSignature, generate_secret, verify


async def test_what_is_in_the_outbox_is_delivered_in_order_for_every_key(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, range(30), 10)
        fill(database, sent[:100])
        async with delivering(database):
            await receiver.until(lambda: len(receiver.accepted) >= 100)
            fill(database, sent[100:])
            await receiver.until(lambda: len(receiver.accepted) >= 300)
        assert_complete(receiver, sent)
        assert len(receiver.ids()) == 300
        assert statuses(database) == {"delivered": 300}


async def test_libraries_verify_a_real_delivery_and_refuse_it_tampered_with(database: Database) -> None:
    old, new = generate_secret(), generate_secret()
    async with receiving() as receiver:
        trigger = create_trigger(database, "large.alert-1", receiver.url, [new, old]), "large.alert-1"
        sent = transition(trigger, "客户", 1)
        fill(database, [sent])
        async with delivering(database):
            await receiver.until(lambda: receiver.accepted)
    (request,) = receiver.accepted
    headers = dict(request.headers)
    for secret in (old, new):
        assert standardwebhooks.Webhook(secret).verify(request.body, headers) == request.payload
        svix.webhooks.Webhook(secret).verify(request.body, headers)
        assert verify(request.body, headers, secret) == request.payload
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(secret).verify(request.body.replace(b"MATCH", b"UNMATCH"), headers)
        with pytest.raises(svix.webhooks.WebhookVerificationError):
            svix.webhooks.Webhook(secret).verify(request.body, headers | {"webhook-id": "0" * 32})
        with pytest.raises(InvalidSignature):
            verify(request.body + b" ", headers, secret)
    assert list(request.payload) == [
        "event_id", "event_type", "trigger_name", "timestamp", "source_timestamp", "data",
    ]  # fmt: skip
    assert headers["webhook-id"] == request.payload["event_id"] == sent.event_id
    assert request.payload["source_timestamp"] == "1"
    sent_at_s = parse_rfc3339(request.payload["timestamp"]) // 10**9
    assert str(sent_at_s) == headers["webhook-timestamp"]


async def test_npm_s_library_verifies_a_real_delivery_and_refuses_it_tampered_with(database: Database) -> None:
    need_javascript()
    old, new = generate_secret(), generate_secret()
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url, [new, old]), "big"
        fill(database, [transition(trigger, "客户", 1)])
        async with delivering(database):
            await receiver.until(lambda: receiver.accepted)
    (request,) = receiver.accepted
    body = request.body.decode()
    forged = body.replace("MATCH", "UNMATCH")
    given = [
        {"secret": secret, "body": text, "headers": dict(request.headers)}
        for secret, text in [(old, body), (new, body), (generate_secret(), body), (new, forged)]
    ]
    ran = await asyncio.to_thread(
        subprocess.run, ["node", "verify.mjs"], cwd=CLIENTS, input=json.dumps(given), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    verdicts = json.loads(ran.stdout)
    assert verdicts[:2] == [{"payload": request.payload}] * 2
    assert ["refused" in verdict for verdict in verdicts[2:]] == [True, True]


async def test_attempts_differ_in_their_timestamp_only(database: Database) -> None:
    async with receiving(lambda _: Reply(500 if len(receiver.requests) < 3 else 200)) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        fill(database, [transition(trigger, 1, 1)])
        async with delivering(database):
            await receiver.until(lambda: receiver.accepted)
    payloads = [request.payload for request in receiver.requests]
    assert len({payload.pop("timestamp") for payload in payloads}) == 3
    assert payloads[0] == payloads[1] == payloads[2]
    assert all(verify(request.body, request.headers, SECRET) for request in receiver.requests)


async def test_whatever_receivers_do_nothing_is_lost_and_order_is_kept(database: Database) -> None:
    chance = random.Random(7)

    failures: list[Reply | str] = [
        Reply(500), Reply(400), Reply(429, headers={"Retry-After": "0"}), replies.HANG, replies.CLOSE, replies.CUT,
        replies.SHORT, replies.GARBAGE, Reply(302, headers={"Location": "http://127.0.0.1:1/"}),
        Reply(headers={"connection": "close"}),
    ]  # fmt: skip

    def behave(_: Request) -> Reply | str:
        return Reply() if chance.random() < 0.6 else chance.choice(failures)

    async with receiving(behave) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, range(25), 6)
        fill(database, sent)
        async with delivering(database, PATIENT, timeout_s=0.2) as delivery:
            await settled(database, len(sent))
        assert_complete(receiver, sent)
        assert statuses(database) == {"delivered": len(sent)}
        outcomes = Counter(dict(asked(database, "SELECT outcome, count(*) FROM delivery_attempts GROUP BY 1")))
        assert outcomes == Counter({outcome: n for outcome, n in delivery.dispatch.attempts.items() if n})
        assert set(outcomes) == {
            "delivered", "failed", "refused", "throttled", "timeout", "unreachable", "redirected",
        }  # fmt: skip


async def test_what_fails_to_the_end_is_dead_and_its_chain_continues(database: Database) -> None:
    def behave(request: Request) -> Reply:
        return Reply(500, b"out of order" * 100) if request.payload["data"] == {"id": 1, "n": 1} else Reply()

    async with receiving(behave) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = chains(trigger, [1, 2], 3)
        fill(database, sent)
        async with delivering(database):
            await settled(database, 6)
        dead = sent[0].event_id
        assert statuses(database) == {"delivered": 5, "dead": 1}
        assert [request.id for request in receiver.requests].count(dead) == 1 + len(TERMS.schedule.delays_s)
        assert receiver.by_key() == ids_by_key(one for one in sent if one.event_id != dead)
        first_of_next = next(n for n, request in enumerate(receiver.requests) if request.id == sent[2].event_id)
        assert all(request.id != dead for request in receiver.requests[first_of_next:]), "not before it is given up"

        async with await database.connect() as connection:
            (row,) = await list_deliveries(connection, "big", status="dead", limit=10)
            assert (row.event_id, row.attempts, row.outcome, row.http_status) == (dead, 5, "failed", 500)
            found = await read_attempts(connection, "big", dead)
            assert found is not None
            assert [attempt.number for attempt in found[1]] == [5, 4, 3, 2, 1]
            assert all(len(attempt.response) == 200 for attempt in found[1]), "only the beginning is kept"
            receiver.behave = lambda _: Reply()
            async with delivering(database):
                assert await redeliver(connection, "big") == 1
                await receiver.until(lambda: receiver.ids()[-1] == dead)
        assert statuses(database) == {"delivered": 6}


async def test_a_receiver_that_asks_for_patience_is_left_alone_as_a_whole(database: Database) -> None:
    def behave(request: Request) -> Reply:
        patient = request.at_s - receiver.requests[0].at_s >= 1
        return Reply() if patient else Reply(429, headers={"Retry-After": "1"})

    async with receiving(behave) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        fill(database, chains(trigger, range(40), 1))
        async with delivering(database):
            await receiver.until(lambda: len(receiver.accepted) == 40)
    assert len(receiver.requests) <= 44, "too early came only those that were under way already"
    assert statuses(database) == {"delivered": 40}


async def test_a_receiver_that_is_gone_is_sent_nothing_until_somebody_enables_the_trigger(database: Database) -> None:
    disabled = Disabled()
    async with receiving(lambda _: Reply(410)) as receiver, receiving() as other:
        trigger = create_trigger(database, "big", receiver.url), "big"
        second = create_trigger(database, "other", other.url), "other"
        sent = chains(trigger, range(40), 2)
        fill(database, [*sent, *chains(second, "a", 1)])
        async with delivering(database, disable=disabled):
            await other.until(lambda: other.accepted and disabled)
            fill(database, chains(second, "b", 1))
            await other.until(lambda: len(other.accepted) == 2)
            assert len(receiver.requests) <= 4, "those that were under way already"
        async with delivering(database, disable=disabled):
            fill(database, chains(second, "c", 1))
            await other.until(lambda: len(other.accepted) == 3)
        assert len(receiver.requests) <= 4
        assert disabled == ["big"], "once, or a repeat could undo that somebody has enabled it"
        assert asked(database, "SELECT name, halted_sequence FROM triggers WHERE halted_at IS NOT NULL") == [
            ("big", 101)
        ]
        assert statuses(database) == {"pending": 80, "delivered": 3}
        receiver.behave = lambda _: Reply()
        async with delivering(database):
            with database.connect_sync() as connection:
                connection.execute("UPDATE triggers SET halted_at = NULL, halted_sequence = NULL")
            await receiver.until(lambda: len(receiver.accepted) == 80)
        assert_complete(receiver, sent)


async def test_large_rows_are_delivered_as_they_are(database: Database) -> None:
    async with receiving() as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        sent = [transition(trigger, key, time, size=300_000) for time in (1, 2, 3) for key in "ab"]
        fill(database, sent)
        async with delivering(database):
            await receiver.until(lambda: len(receiver.accepted) == 6)
        assert_complete(receiver, sent)


async def test_what_endpoints_wait_for_so_long_that_retries_would_have_ended_is_dead(database: Database) -> None:
    async with receiving(lambda _: replies.CLOSE) as receiver:
        trigger = create_trigger(database, "big", receiver.url), "big"
        fill(database, chains(trigger, range(200), 2))
        terms = replace(TERMS, schedule=Schedule([0.1] * 3), care=replace(TERMS.care, pause_max_s=60))
        async with delivering(database, terms):
            await settled(database, 400)
        assert statuses(database) == {"dead": 400}
        assert len(receiver.requests) < 20, "it was left alone"
        ((expired,),) = asked(database, "SELECT count(*) FROM delivery_attempts WHERE outcome = 'expired'")
        assert expired > 380
        receiver.behave = lambda _: Reply()
        async with delivering(database, terms):
            async with await database.connect() as connection:
                await redeliver(connection, "big")
            await receiver.until(lambda: len(receiver.accepted) == 400)
        assert statuses(database) == {"delivered": 400}
