"""Corrections on a real Postgres: what is recorded of them, what is refused, and who wins when several want one."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.recording import LIMITS, judged, record, rows, sequencing
from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import PayloadTooLarge
from tidelock.ledger.reader import Slice, read_events
from tidelock.ledger.sequencer import Sequencer
from tidelock.model import Accepted, Conflict, Duplicate, Rejected, Verdict
from tidelock.postgres.database import Database

DAY = "2026-01-01T00:00:00Z"
CALL = {
    "customerRef": "cus_1", "resourceId": "r", "ts": DAY, "quantity": "1.50", "data": {"region": "eu"},
    "idempotencyKey": "call",
}  # fmt: skip


def void(target: str, **more: Any) -> dict[str, Any]:
    return {"op": "void", "target": target} | more


def amend(target: str, **more: Any) -> dict[str, Any]:
    return {"op": "amend", "target": target} | more


def said(verdicts: list[Verdict]) -> list[str | int]:
    """The code of each rejected event, the sequence of each accepted one, `again` or `other` of a repeated one."""
    words: list[str | int] = []
    for verdict in verdicts:
        match verdict:
            case Accepted(ingress_sequence=sequence):
                words.append(sequence)
            case Rejected(error=problem):
                words.append(problem.code)
            case Duplicate():
                words.append("again")
            case Conflict():
                words.append("other")
    return words


async def one_by_one(
    sequencer: Sequencer, *events: Mapping[str, Any], definitions: Definitions | None = None
) -> list[Verdict]:
    return [(await record(sequencer, event, definitions=definitions))[0] for event in events]


async def test_a_correction_is_recorded_with_what_its_target_says(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, CALL)
        await record(sequencer, amend("call", quantity=2, reason="meter was reset", idempotencyKey="two"))
        await record(sequencer, amend("two", data=[1, 1.0], batchId="fix", idempotencyKey="three"))
        await record(sequencer, void("three", batchId="fix"))
    assert await rows(
        database,
        "SELECT op, customer_ref, resource_id, occurred_at = min(occurred_at) OVER (), quantity::text, data::text, "
        "target, target_sequence, reason, batch_id FROM events ORDER BY ingress_sequence",
    ) == [
        ("upsert", "cus_1", "r", True, "1.5", '{"region":"eu"}', None, None, None, None),
        ("amend", "cus_1", "r", True, "2", '{"region":"eu"}', "call", 1, "meter was reset", None),
        ("amend", "cus_1", "r", True, "2", "[1,1.0]", "two", 2, None, "fix"),
        ("void", "cus_1", "r", True, None, None, "three", 3, None, "fix"),
    ]
    assert await rows(database, "SELECT target_sequence, ingress_sequence FROM corrections ORDER BY 1") == [
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    async with await database.connect() as connection:
        found = await read_events(connection, Slice(batch_id="fix"), limit=10)
    assert [(event.target, event.target_sequence, event.batch_id) for event in found] == [
        ("two", 2, "fix"),
        ("three", 3, "fix"),
    ]


async def test_a_target_must_be_an_earlier_event_of_the_same_tenant_and_stream(database: Database) -> None:
    async with sequencing(database) as sequencer:
        answers = await one_by_one(
            sequencer,
            CALL,
            void("never"),
            void("call", tenantId="other"),
            void("call", stream="other"),
            amend("never", quantity=1),
        )
        assert said(answers) == [1, *["unknown_target"] * 4]
        later = await record(sequencer, void("later"), {"idempotencyKey": "later"}, void("later"))
        assert said(later) == ["unknown_target", 2, 3]
        assert said(await one_by_one(sequencer, void("self", idempotencyKey="self"))) == ["unknown_target"]


async def test_a_target_without_a_ts_has_the_time_of_its_receipt(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, {"idempotencyKey": "a"}, void("a"))
        await record(sequencer, {"idempotencyKey": "b"})
        await record(sequencer, void("b"))
    assert await rows(
        database, "SELECT count(DISTINCT occurred_at) FROM events GROUP BY coalesce(target, idempotency_key)"
    ) == [(1,), (1,)]


async def test_an_event_is_corrected_once_whether_in_one_request_or_in_several(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, CALL, CALL | {"idempotencyKey": "other"})
        one = await record(
            sequencer,
            void("call"),
            amend("call", quantity=1),
            void("call"),
            void("call", idempotencyKey="own"),
        )
        assert said(one) == [3, "invalid_target", "again", "invalid_target"]
        assert isinstance(one[1], Rejected)
        assert one[1].error.message == "sequence 1 is already corrected, by sequence 3"
        assert one[1].error.field == "target"
        several = await one_by_one(
            sequencer,
            amend("other", quantity=2),
            amend("other", quantity="2.0", reason="so"),
            amend("other", quantity=3),
            void("other"),
        )
        assert said(several) == [4, "again", "other", "invalid_target"]


async def test_a_void_is_final_and_an_amendment_can_be_corrected_in_its_turn(database: Database) -> None:
    async with sequencing(database) as sequencer:
        first = await one_by_one(
            sequencer,
            CALL,
            amend("call", quantity=2, idempotencyKey="two"),
            amend("two", quantity=3, idempotencyKey="three"),
            void("three", idempotencyKey="gone"),
            void("gone"),
            amend("gone", quantity=1),
        )
    assert said(first) == [1, 2, 3, 4, "invalid_target", "invalid_target"]
    assert "is a void" in str(first[-1])
    assert "with another key" in str(first[-1])


async def test_events_of_a_stream_with_a_key_are_corrected_by_their_next_upsert(database: Database) -> None:
    keyed = parse_definitions({"streams": {"s": {"key": "resource_id"}}})
    async with sequencing(database) as sequencer:
        await record(sequencer, CALL | {"idempotencyKey": "row"}, definitions=keyed)
        await record(sequencer, CALL, void("call"))
        # Recorded with a key; then one whose stream has become keyed; then a repeat of a void of before.
        assert said(await record(sequencer, void("row"))) == ["invalid_target"]
        await record(sequencer, CALL | {"idempotencyKey": "before"})
        answers = await one_by_one(sequencer, void("before"), void("call"), definitions=keyed)
    assert said(answers) == ["invalid_target", "again"]


async def test_what_an_amendment_sent_decides_whether_another_is_the_same(database: Database) -> None:
    """Its row has the resulting quantity and data, whether or not they were sent."""
    sent: list[dict[str, Any]] = [
        {},
        {"quantity": "1.5"},
        {"data": {"region": "eu"}},
        {"quantity": "1.5", "data": {"region": "eu"}},
    ]
    async with sequencing(database) as sequencer:
        for number, says in enumerate(sent):
            await record(sequencer, CALL | {"idempotencyKey": f"call{number}"})
            await record(sequencer, amend(f"call{number}", **says))
        for number, says in enumerate(sent):
            again = [amend(f"call{number}", **other) for other in sent]
            expected = ["again" if other == says else "other" for other in sent]
            assert said(await one_by_one(sequencer, *again)) == expected
        spelled = judged([amend("call2", data={"region": "eu"})], sequencer.salts)
        assert said(await sequencer.record(spelled, sequencer.salts.version)) == ["again"]
        reordered = [{"idempotencyKey": "j"}, amend("j", data={"a": 1, "b": 2}), amend("j", data={"b": 2, "a": 1})]
        assert said(await one_by_one(sequencer, *reordered))[2] == "again"
        assert said(await record(sequencer, *reordered)) == ["again", "again", "again"]


async def test_of_several_processes_that_correct_one_event_one_does(database: Database) -> None:
    async with (
        sequencing(database) as first,
        sequencing(database) as second,
        sequencing(database) as third,
    ):
        writers = [first, second, third]
        await record(first, *[{"idempotencyKey": f"k{n}"} for n in range(30)])
        for n in range(30):
            wants = [void(f"k{n}"), amend(f"k{n}", quantity=1), void(f"k{n}", idempotencyKey=f"own{n}")]
            answers = await asyncio.gather(
                *(record(writer, want) for writer, want in zip(writers, wants[n % 3 :] + wants[: n % 3], strict=True))
            )
            words = [said(answer)[0] for answer in answers]
            assert sorted(map(str, words))[1:] == ["invalid_target", "invalid_target"], words
    assert await rows(database, "SELECT count(*), count(DISTINCT ingress_sequence) FROM corrections") == [(30, 30)]


async def test_amendments_leave_no_more_data_as_it_is_than_a_commit_may_have(database: Database) -> None:
    async with sequencing(database, limits=replace(LIMITS, commit_bytes_max=10_000)) as sequencer:
        for n in range(4):
            await record(sequencer, {"idempotencyKey": f"k{n}", "data": "x" * 4000})
        answers = await asyncio.gather(
            record(sequencer, *[amend(f"k{n}") for n in range(3)]),
            record(sequencer, amend("k0"), amend("k1")),
            record(sequencer, void("k2"), amend("k3", data=1)),
            return_exceptions=True,
        )
        assert isinstance(answers[0], PayloadTooLarge)
        assert [said(answer) for answer in answers[1:] if isinstance(answer, list)] == [[5, 6], [7, 8]]
        chain = [amend(f"c{n}", idempotencyKey=f"c{n + 1}") for n in range(3)]
        (answer,) = await asyncio.gather(
            record(sequencer, {"idempotencyKey": "c0", "data": "x" * 4000}, *chain), return_exceptions=True
        )
        assert isinstance(answer, PayloadTooLarge)
