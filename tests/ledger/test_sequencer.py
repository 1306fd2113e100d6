"""The sequencer on a real Postgres: one order, one identity, one time per request."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import psycopg
import pytest

from tests.recording import LIMITS, judged, record, rows, sequencing
from tidelock.errors import Overloaded, RequestError, Unreachable
from tidelock.ingest.identity import content_hash
from tidelock.ingest.intake import SaltsChanged
from tidelock.ledger.commit import Collection, Commit, decide
from tidelock.ledger.writer import ensure_partitions
from tidelock.model import Accepted, Conflict, Duplicate, Event, Rejected, Verdict
from tidelock.postgres.database import Database

DAY = "2026-01-01T00:00:00Z"


@pytest.fixture(autouse=True, params=[0, 64], ids=["writes first", "looks first"])
def caution(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to find a repeat must say the same."""
    monkeypatch.setattr("tidelock.ledger.sequencer.CAUTIOUS_COMMITS", request.param)


def keyed(number: int, **fields: Any) -> dict[str, Any]:
    return {"idempotencyKey": f"k{number}"} | fields


def sequences(verdicts: list[Verdict]) -> list[int]:
    assert all(isinstance(verdict, Accepted) for verdict in verdicts), verdicts
    return [verdict.ingress_sequence for verdict in verdicts if isinstance(verdict, Accepted)]


async def test_sequences_start_at_one_and_follow_the_order_of_the_array(database: Database) -> None:
    async with sequencing(database) as sequencer:
        assert sequences(await record(sequencer, keyed(1), keyed(2))) == [1, 2]
        assert sequences(await record(sequencer, keyed(3))) == [3]


async def test_one_request_has_one_source_timestamp_and_the_next_a_greater_one(database: Database) -> None:
    async with sequencing(database, clock=lambda now: 1000) as sequencer:
        first = await record(sequencer, keyed(1), keyed(2))
        second = await record(sequencer, keyed(3))
    times = [verdict.source_timestamp for verdict in [*first, *second] if isinstance(verdict, Accepted)]
    assert times == ["1000", "1000", "1001"]


async def test_a_clock_that_goes_back_does_not_take_time_with_it(database: Database) -> None:
    readings = iter([5000, 3000, 7000])
    async with sequencing(database, clock=lambda now: next(readings)) as sequencer:
        for number in range(3):
            await record(sequencer, keyed(number))
    found = await rows(database, "SELECT source_timestamp, received_at FROM events ORDER BY ingress_sequence")
    assert found == [(5000, 5000), (5001, 3000), (7000, 7000)]


async def test_requests_that_wait_are_committed_together_and_keep_their_own_times(database: Database) -> None:
    async with sequencing(database, clock=lambda now: 1000) as sequencer:
        await asyncio.gather(*(record(sequencer, keyed(number)) for number in range(50)))
    commits, events, times = (
        await rows(
            database,
            "SELECT (SELECT count(*) FROM commits), count(*), count(DISTINCT source_timestamp) FROM events",
        )
    )[0]
    assert commits < 10
    assert (events, times) == (50, 50)


async def test_a_commit_has_no_more_events_than_allowed(database: Database) -> None:
    async with sequencing(database, limits=replace(LIMITS, commit_events_max=10)) as sequencer:
        await asyncio.gather(*(record(sequencer, keyed(2 * n), keyed(2 * n + 1), {}) for n in range(20)))
    sizes = await rows(
        database, "SELECT max(last_sequence - first_sequence + 1), sum(last_sequence - first_sequence + 1) FROM commits"
    )
    assert sizes == [(9, 60)]


async def test_a_repeat_in_the_same_batch_in_another_request_and_after_a_restart_is_a_duplicate(
    database: Database,
) -> None:
    event = {"ts": DAY, "quantity": "1"}
    async with sequencing(database) as sequencer:
        first, second = await record(sequencer, event, event)
        assert isinstance(first, Accepted)
        again = Duplicate(1, first.idempotency_key or "", "derived")
        assert second == again
        assert await record(sequencer, event) == [again]
    async with sequencing(database) as sequencer:
        assert await record(sequencer, event) == [again]
    assert await rows(database, "SELECT count(*) FROM events") == [(1,)]


async def test_of_concurrent_sends_of_one_event_exactly_one_is_accepted(database: Database) -> None:
    async with sequencing(database) as one, sequencing(database) as other:
        answers = await asyncio.gather(*(record(s, keyed(n % 5)) for n in range(50) for s in (one, other)))
    assert sorted(type(answer[0]).__name__ for answer in answers) == ["Accepted"] * 5 + ["Duplicate"] * 95
    assert await rows(database, "SELECT count(*), max(ingress_sequence) FROM events") == [(5, 5)]


async def test_other_content_under_one_key_is_a_conflict_and_the_ledger_keeps_the_original(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, keyed(1, quantity="1", data={"a": 1, "b": 2}))
        assert await record(sequencer, keyed(1, quantity="2", data={"a": 1, "b": 2})) == [Conflict(1, "k1", "client")]
        assert await record(sequencer, keyed(1, quantity="1.0", data={"b": 2, "a": 1.0}, source="retry")) == [
            Duplicate(1, "k1", "client")
        ]
        assert await record(sequencer, keyed(1, quantity="1", ts=DAY, data={"a": 1, "b": 2})) == [
            Conflict(1, "k1", "client")
        ]
    assert await rows(database, "SELECT quantity::text, data::text FROM events") == [("1", '{"a":1,"b":2}')]


async def test_a_conflict_inside_one_batch_names_the_first_event(database: Database) -> None:
    async with sequencing(database) as sequencer:
        _, second, third = await record(
            sequencer, keyed(1, data={"a": 1}), keyed(1, data={"a": 2}), keyed(1, data={"a": 1.0})
        )
    assert second == Conflict(1, "k1", "client")
    assert third == Duplicate(1, "k1", "client")


async def test_the_same_key_in_two_tenants_is_two_events(database: Database) -> None:
    async with sequencing(database) as sequencer:
        assert sequences(await record(sequencer, keyed(1, tenantId="a"), keyed(1, tenantId="b"))) == [1, 2]


async def test_a_derived_key_that_a_client_sends_back_is_the_same_identity(database: Database) -> None:
    async with sequencing(database) as sequencer:
        (first,) = await record(sequencer, {"ts": DAY})
        assert isinstance(first, Accepted)
        key = first.idempotency_key or ""
        assert await record(sequencer, {"ts": DAY, "idempotencyKey": key}) == [Duplicate(1, key, "derived")]
        assert await record(sequencer, {"ts": DAY, "idempotencyKey": key, "quantity": 1}) == [
            Conflict(1, key, "derived")
        ]


@pytest.mark.parametrize("key", ['["default","k1"]', "import:0:1", "\\x00", "k1:1", "' OR true --", "NULL"])
async def test_a_client_key_that_looks_like_an_internal_one_is_just_a_key(database: Database, key: str) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, keyed(1))
        assert sequences(await record(sequencer, {"idempotencyKey": key})) == [2]
        assert await record(sequencer, {"idempotencyKey": key}) == [Duplicate(2, key, "client")]


async def test_an_event_without_time_and_key_is_taken_as_often_as_it_is_sent(database: Database) -> None:
    async with sequencing(database, clock=lambda now: 1000) as sequencer:
        first, second = await record(sequencer, {}, {})
    assert isinstance(first, Accepted)
    assert (first.retry_safe, first.idempotency_key, first.key_source) == (False, None, "none")
    assert sequences([first, second]) == [1, 2]
    assert (
        await rows(database, "SELECT occurred_at, idempotency_key, key_source FROM events") == [(1000, None, None)] * 2
    )


async def test_a_key_without_time_is_a_duplicate_whenever_it_comes_again(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, keyed(1, data={"a": 1}))
        assert await record(sequencer, keyed(1, data={"a": 1})) == [Duplicate(1, "k1", "client")]
        assert await record(sequencer, keyed(1, data={"a": 1.0})) == [Duplicate(1, "k1", "client")]


async def test_a_timestamp_more_than_an_hour_ahead_of_the_ledgers_clock_is_refused(database: Database) -> None:
    async with sequencing(database, clock=lambda now: 0) as sequencer:
        one, two, three = await record(sequencer, {"ts": 3_600_000}, {"ts": 3_600_001}, {"ts": 0})
    assert isinstance(one, Accepted)
    assert isinstance(two, Rejected)
    assert two.error.code == "future_timestamp"
    assert isinstance(three, Accepted)
    assert three.ingress_sequence == 2


async def test_a_request_that_records_nothing_takes_no_commit_and_no_time(database: Database) -> None:
    async with sequencing(database, clock=lambda now: 1000) as sequencer:
        await record(sequencer, keyed(1))
        await record(sequencer, keyed(1))
        await record(sequencer, {"stream": ""})
        await record(sequencer, keyed(2))
    assert await rows(database, "SELECT commit_id, last_sequence, last_source_timestamp FROM commits") == [
        (1, 1, 1000),
        (2, 2, 1001),
    ]


async def test_a_control_event_is_a_commit_of_its_own(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await asyncio.gather(
            *(record(sequencer, keyed(number)) for number in range(10)),
            sequencer.control({"type": "tick"}),
            *(record(sequencer, keyed(number)) for number in range(10, 20)),
        )
    found = await rows(
        database,
        "SELECT count(*), min(e.tenant_id), min(e.stream), min(e.data::text), bool_and(e.idempotency_key IS NULL) "
        "FROM commits c JOIN events e USING (commit_id) WHERE control",
    )
    assert found == [(1, "_tidelock", "_tidelock", '{"type":"tick"}', True)]
    assert await rows(database, "SELECT count(*) FROM events") == [(21,)]


async def test_only_the_request_whose_data_the_database_refuses_fails(database: Database) -> None:
    async with await database.connect() as connection:
        await connection.execute("ALTER TABLE events ADD CHECK (customer_ref <> 'guilty')")
    async with sequencing(database) as sequencer:
        answers = await asyncio.gather(
            *(record(sequencer, keyed(n, customerRef="guilty" if n == 7 else "innocent")) for n in range(20)),
            return_exceptions=True,
        )
    assert isinstance(answers[7], RequestError)
    assert not isinstance(answers[7], Unreachable)
    innocent = [answer[0] for answer in answers if not isinstance(answer, BaseException)]
    assert sorted(sequences(innocent)) == list(range(1, 20))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET quantity = 2", "DELETE FROM events", "TRUNCATE events",
        "UPDATE identities SET ingress_sequence = 9",
        "DELETE FROM identities", "TRUNCATE identities", "UPDATE commits SET control = true", "DELETE FROM commits",
        "TRUNCATE commits", "DELETE FROM ledger_head", "UPDATE ledger_head SET ingress_sequence = 0",
        "UPDATE ledger_head SET source_timestamp = 0", "TRUNCATE ledger_head", "DELETE FROM events_0_1000000",
        "TRUNCATE events_0_1000000", "UPDATE events_0_1000000 SET data = NULL", "TRUNCATE events_default",
    ],
)  # fmt: skip
async def test_the_database_itself_refuses_to_change_the_ledger(database: Database, statement: str) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, keyed(1))
    async with await database.connect() as connection:
        with pytest.raises(psycopg.errors.RestrictViolation, match=r"append-only|only moves forward"):
            await connection.execute(statement.encode())


async def test_events_beyond_the_partitions_go_to_the_default_one_and_the_next_partition_is_made_ahead(
    database: Database,
) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, keyed(1))
        async with await database.connect() as connection:
            await connection.execute("UPDATE ledger_head SET ingress_sequence = 5000000")
            await record(sequencer, keyed(2))
            assert await rows(database, "SELECT count(*) FROM events_default") == [(1,)]
            await ensure_partitions(connection, 1_000_000)
            await connection.execute("UPDATE ledger_head SET ingress_sequence = 6000000")
            await record(sequencer, keyed(3))
    found = await rows(database, "SELECT tableoid::regclass::text, ingress_sequence FROM events ORDER BY 2")
    assert found == [("events_0_1000000", 1), ("events_default", 5000001), ("events_6000000_7000000", 6000001)]


async def test_a_full_queue_says_so_and_takes_nothing_of_the_request(database: Database) -> None:
    async with sequencing(database, limits=replace(LIMITS, queue_events_max=5)) as sequencer:
        answers = await asyncio.gather(
            *(record(sequencer, keyed(2 * n), keyed(2 * n + 1)) for n in range(10)), return_exceptions=True
        )
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert refused
    assert await rows(database, "SELECT count(*) FROM events") == [(2 * (10 - len(refused)),)]


async def test_a_connection_lost_between_commits_is_replaced_and_nobody_notices(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, keyed(1))
        await rows(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidelock sequencer'",
        )
        assert sequences(await record(sequencer, keyed(2))) == [2]


async def test_a_writer_that_holds_the_head_does_not_hold_the_others_for_ever(database: Database) -> None:
    async with sequencing(database, limits=replace(LIMITS, lock_timeout_s=0.3)) as sequencer:
        async with await database.connect(autocommit=False) as holder:
            await holder.execute("SELECT FROM ledger_head FOR UPDATE")
            with pytest.raises(Unreachable, match="lock timeout"):
                await record(sequencer, keyed(1))
            await holder.rollback()
        assert sequences(await record(sequencer, keyed(1))) == [1]


async def test_a_database_that_hangs_is_reported_in_time_and_given_up(database: Database) -> None:
    async with sequencing(database, limits=replace(LIMITS, commit_timeout_s=0.3)) as sequencer:
        async with await database.connect(autocommit=False) as holder:
            await holder.execute("SELECT FROM ledger_head FOR UPDATE")
            with pytest.raises(Unreachable, match="in time"):
                await record(sequencer, keyed(1))
            await holder.rollback()
        assert sequences(await record(sequencer, keyed(1))) == [1]


async def test_closing_commits_what_was_taken(database: Database) -> None:
    async with sequencing(database) as sequencer:
        waiting = [asyncio.create_task(record(sequencer, keyed(number))) for number in range(20)]
        await asyncio.sleep(0)
    assert sorted(sequences([(await task)[0] for task in waiting])) == list(range(1, 21))


async def test_commits_are_durable_even_where_the_servers_default_is_not(database: Database) -> None:
    async with await database.connect() as connection:
        name = connection.info.dbname
        await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
    async with sequencing(database) as sequencer:
        await record(sequencer, keyed(1))
        writing = sequencer._writer._connection
        assert writing is not None
        shown = await (await writing.execute("SHOW synchronous_commit")).fetchone()
    assert shown == ("on",)


async def test_an_unstorable_instant_cannot_reach_the_ledger(database: Database) -> None:
    async with sequencing(database) as sequencer:
        (verdict,) = await record(sequencer, {"ts": "2261-12-31T23:59:59Z"})
        assert isinstance(verdict, Rejected)
        (verdict,) = await record(
            sequencer, {"ts": "1678-01-01T00:00:00Z", "quantity": "-999999999999999999.999999999"}
        )
        assert isinstance(verdict, Accepted)
    assert await rows(database, "SELECT quantity::text FROM events") == [("-999999999999999999.999999999",)]


async def test_salts_that_changed_are_noticed_before_anything_is_recorded_under_the_old_ones(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with sequencing(database, salt="old") as sequencer:
        old = sequencer.salts
        stale = judged([{"ts": DAY}], old)
        await rows(database, "UPDATE ledger_head SET salts_version = salts_version + 1 RETURNING 1")
        with pytest.raises(SaltsChanged):
            await sequencer.record(stale, old.version)
        assert sequencer.salts.version == old.version + 1
    assert await rows(database, "SELECT count(*) FROM events") == [(0,)]
    assert not caplog.records, "that is no failure"


async def test_a_number_too_large_to_compute_with_is_compared_all_the_same(database: Database) -> None:
    async with sequencing(database) as sequencer:
        (spelled,) = judged([keyed(1, data=5)], sequencer.salts)
        assert isinstance(spelled, Event)

        def sent(data: bytes) -> list[Event | Rejected]:
            hashed = content_hash("default", "s", None, None, occurred_at=None, quantity=None, op="upsert", data=data)
            return [msgspec.structs.replace(spelled, data=data, content_hash=hashed)]

        version = sequencer.salts.version
        await sequencer.record(sent(b'{"a":1e99999999999999999999}'), version)
        assert await sequencer.record(sent(b'{"a": 1E99999999999999999999}'), version) == [Duplicate(1, "k1", "client")]
        assert await sequencer.record(sent(b'{"a":1e99999999999999999998}'), version) == [Conflict(1, "k1", "client")]


async def test_a_defect_met_by_one_request_fails_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def brittle(collections: list[Collection], *rest: Any, **named: Any) -> Commit:
        if any("guilty" in event.keys for c in collections for event in c.events if isinstance(event, Event)):
            raise ZeroDivisionError
        return decide(collections, *rest, **named)

    monkeypatch.setattr("tidelock.ledger.sequencer.decide", brittle)
    async with sequencing(database) as sequencer:
        answers = await asyncio.gather(
            *(record(sequencer, {"idempotencyKey": "guilty" if n == 7 else f"k{n}"}) for n in range(20)),
            return_exceptions=True,
        )
    assert isinstance(answers[7], Unreachable)
    assert "ZeroDivision" not in answers[7].message
    assert sorted(sequences([a[0] for a in answers if not isinstance(a, BaseException)])) == list(range(1, 20))
    assert "ZeroDivisionError" in caplog.text


async def test_a_commit_has_no_more_bytes_than_allowed_but_takes_any_one_request(database: Database) -> None:
    async with sequencing(database, limits=replace(LIMITS, commit_bytes_max=5000, queue_bytes_max=10**9)) as sequencer:
        await asyncio.gather(*(record(sequencer, keyed(n, data="x" * (9000 if n == 3 else 1000))) for n in range(20)))
    found = await rows(database, "SELECT sum(length(data::text)), count(*) FROM events GROUP BY commit_id")
    assert sum(count for _, count in found) == 20
    assert all(size <= 5000 or count == 1 for size, count in found)


async def test_a_full_queue_is_also_one_of_many_bytes(database: Database) -> None:
    async with sequencing(database, limits=replace(LIMITS, queue_bytes_max=10_000)) as sequencer:
        answers = await asyncio.gather(
            *(record(sequencer, keyed(n, data="x" * 4000)) for n in range(10)), return_exceptions=True
        )
        assert any(isinstance(answer, Overloaded) for answer in answers)
        assert sequences(await record(sequencer, keyed(99, data="x" * 20_000))), "one request alone is always taken"
