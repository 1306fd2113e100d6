"""Verification on a real Postgres: an untouched ledger passes, whatever a superuser changes is found and named."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.recording import judged, record, rows, sequencing
from tidelock.errors import Unreachable
from tidelock.ledger.anchor import Anchor
from tidelock.ledger.commit import chain_digest
from tidelock.ledger.rows import (
    event_row,
    event_tail,
    first_form,
    numeric_text,
    raw_rows,
    row_digests,
    row_numbers,
    tail_digest,
)
from tidelock.ledger.verify import VerifyResult, verify
from tidelock.model import Event
from tidelock.postgres.database import Database
from tidelock.quantities import numeric_binary

DAY = "2026-01-01T00:00:00Z"
EVERY_FIELD = {
    "tenantId": "acme", "stream": "calls", "customerRef": "cus_ü\"\\", "resourceId": "", "ts": DAY, "quantity": "-1.50",
    "data": {"b": 1, "a": [1.0, "x\ny"]}, "op": "delete", "causalityKey": "run", "correlationId": "c",
    "causationId": "k", "idempotencyKey": "k1", "source": "sdk",
}  # fmt: skip


async def fill(database: Database) -> None:
    """Commits 1 to 4: sequences 1 to 3, 4 to 6, 7 (control), 8."""
    async with sequencing(database) as sequencer:
        await record(sequencer, EVERY_FIELD, {"ts": DAY}, {})
        await record(sequencer, {"idempotencyKey": "k2"}, {"idempotencyKey": "k3", "quantity": "12345.000000001"}, {})
        await sequencer.control({"type": "tick"})
        await record(sequencer, {"ts": DAY, "customerRef": "last"})


async def check(database: Database, anchor: Path = Path("no-anchor.jsonl")) -> VerifyResult:
    return await asyncio.to_thread(verify, database, anchor, lambda done, total: None)


def failed(found: VerifyResult) -> set[str]:
    assert found.report.ok == (found.first is None)
    return {each.name for each in found.report.checks if not each.ok}


async def tamper(database: Database, *statements: str) -> None:
    """As somebody who owns the database would."""
    async with await database.connect() as connection:
        await connection.execute("SET session_replication_role = replica")
        for statement in statements:
            await connection.execute(statement.encode())


@asynccontextmanager
async def tampered(database: Database, statement: str) -> AsyncIterator[None]:
    """With the statement executed, and undone at the end."""
    tables = ("events", "identities", "corrections", "commits", "ledger_head")
    await tamper(database, *(f"CREATE TABLE saved_{table} AS TABLE {table}" for table in tables), statement)
    yield
    for table in tables:
        await tamper(
            database, f"DELETE FROM {table}", f"INSERT INTO {table} TABLE saved_{table}", f"DROP TABLE saved_{table}"
        )


async def test_an_untouched_ledger_passes_every_check(database: Database) -> None:
    await fill(database)
    found = await check(database)
    assert found.first is None
    assert [each.name for each in found.report.checks] == [
        "chain", "density", "order", "content", "identities", "corrections", "anchor",
    ]  # fmt: skip
    assert found.report.ok


async def test_an_empty_ledger_passes(database: Database) -> None:
    assert (await check(database)).report.ok


async def test_a_database_without_a_ledger_is_named_as_such(empty_database: Database) -> None:
    with pytest.raises(Unreachable, match="tidelock migrate"):
        await check(empty_database)


COLUMNS = {
    "ingress_sequence": "100", "commit_id": "3", "source_timestamp": "source_timestamp - 1",
    "received_at": "received_at + 1", "occurred_at": "occurred_at + 1", "tenant_id": "'other'", "stream": "'other'",
    "customer_ref": "NULL", "resource_id": "NULL", "row_key": "''", "op": "'upsert'", "quantity": "-1.5000",
    "data": "'{\"b\": 1, \"a\": [1.0, \"x\\ny\"]}'", "causality_key": "'other'", "correlation_id": "NULL",
    "causation_id": "''", "source": "'SDK'", "idempotency_key": "'k9'", "key_source": "'d'",
    "content_hash": "sha256(content_hash)", "target": "''", "target_sequence": "0", "reason": "'other'",
    "batch_id": "''", "row_digest": "sha256(coalesce(row_digest, ''))",
}  # fmt: skip


async def in_the_first_form(database: Database) -> None:
    """As versions before corrections chained it: the digest of a commit covers its rows, not their digests."""
    await tamper(database, "UPDATE events SET row_digest = NULL", "UPDATE commits SET form = 1")
    with database.connect_sync() as connection:
        recorded = [(row_numbers(row)[1], first_form(row)) for row in raw_rows(connection, 1000)]
    digest = bytes(32)
    for commit_id, last in await rows(database, "SELECT commit_id, last_sequence FROM commits ORDER BY commit_id"):
        digest = chain_digest(digest, commit_id, [row for own, row in recorded if own == commit_id])
        value = f"'\\x{digest.hex()}'"
        await tamper(
            database,
            f"UPDATE commits SET digest = {value} WHERE commit_id = {commit_id}",
            f"UPDATE ledger_head SET digest = {value} WHERE ingress_sequence = {last}",
        )


@pytest.mark.parametrize("form", [1, 2])
async def test_a_change_to_any_column_of_an_event_is_found(database: Database, form: int) -> None:
    await fill(database)
    if form == 1:
        await in_the_first_form(database)
        assert (await check(database)).first is None
    for column, value in COLUMNS.items():
        async with tampered(database, f"UPDATE events SET {column} = {value} WHERE ingress_sequence = 1"):
            found = await check(database)
        assert "chain" in failed(found), column
        assert found.first is not None
        assert "sequence 1" in found.first or "commit 1 " in found.first, (column, found.first)
    assert (await check(database)).first is None


async def test_every_column_is_tried_above(database: Database) -> None:
    found = await rows(database, "SELECT attname FROM pg_attribute WHERE attrelid = 'events'::regclass AND attnum > 0")
    assert {name for (name,) in found} == set(COLUMNS)


CHANGES = [
    ("DELETE FROM events WHERE ingress_sequence = 5", {"chain", "density", "identities"}, "sequence 5 is missing"),
    ("DELETE FROM events WHERE ingress_sequence = 8", {"chain", "density", "identities"}, "sequence 8 is missing"),
    ("DELETE FROM identities WHERE ingress_sequence = 4", {"identities"}, "sequence 4: its identity is not"),
    ("UPDATE identities SET content_hash = sha256('') WHERE ingress_sequence = 4", {"identities"},
     "sequence 4: its identity has another content hash"),
    ("UPDATE identities SET key_source = 'd' WHERE ingress_sequence = 4", {"identities"},
     "sequence 4: its identity has another key source"),
    ("UPDATE identities SET ingress_sequence = 5 WHERE ingress_sequence = 4", {"identities"},
     "sequence 4: its identity says sequence 5"),
    ("INSERT INTO identities VALUES (decode(repeat('ab', 16), 'hex'), 3, sha256(''), 'c')", {"identities"},
     "points to sequence 3"),
    ("INSERT INTO identities VALUES (decode(repeat('ab', 16), 'hex'), 4, sha256(''), 'c')", {"identities"},
     "6 identities are recorded, but 5 events have a key"),
    ("UPDATE commits SET digest = sha256(digest) WHERE commit_id = 2", {"chain"}, "commit 2 "),
    ("UPDATE commits SET digest = sha256(digest) WHERE commit_id = 4", {"chain"}, "commit 4 "),
    ("UPDATE commits SET form = 1 WHERE commit_id = 2", {"chain"}, "commit 2 "),
    ("UPDATE commits SET first_sequence = 5 WHERE commit_id = 2", {"density"}, "sequence 4 lies before commit 2"),
    ("UPDATE commits SET last_source_timestamp = 1 WHERE commit_id = 2", {"order"}, "commit 2 "),
    ("UPDATE commits SET control = true WHERE commit_id = 2", {"order"}, "commit 2 "),
    ("UPDATE commits SET control = false WHERE commit_id = 3", {"order"}, "commit 3 "),
    ("DELETE FROM commits WHERE commit_id = 2", {"chain", "density", "order"}, "commit 2 is missing"),
    ("DELETE FROM commits WHERE commit_id = 4", {"chain", "density"}, "sequence 8 belongs to no commit"),
    ("UPDATE ledger_head SET digest = sha256(digest)", {"chain"}, "the head says commit 4"),
    ("UPDATE ledger_head SET ingress_sequence = 7, commit_id = 3", {"chain", "density"}, "the head says commit 3"),
    (("INSERT INTO events SELECT 9, 5, source_timestamp, received_at, occurred_at, tenant_id, stream, customer_ref, "
     "resource_id, row_key, op, quantity, data, causality_key, correlation_id, causation_id, source, NULL, NULL, "
     "content_hash, target, target_sequence, reason, batch_id, row_digest FROM events WHERE ingress_sequence = 8"),
     {"density"}, "sequence 9 is beyond the head"),
]  # fmt: skip


async def test_what_is_deleted_added_or_rewritten_is_found_and_named(database: Database) -> None:
    await fill(database)
    for statement, checks, first in CHANGES:
        async with tampered(database, statement):
            found = await check(database)
        assert (failed(found), first in str(found.first)) == (checks, True), (statement, found.first)
    assert (await check(database)).first is None


async def test_a_ledger_goes_on_in_the_second_form_after_commits_of_the_first(database: Database) -> None:
    await fill(database)
    await in_the_first_form(database)
    async with sequencing(database) as sequencer:
        await record(sequencer, {"op": "void", "target": "k2"})
    assert (await check(database)).first is None
    assert await rows(database, "SELECT form, count(*) FROM commits GROUP BY 1 ORDER BY 1") == [(1, 4), (2, 1)]
    await tamper(database, "UPDATE events SET reason = 'other' WHERE ingress_sequence = 9")
    found = await check(database)
    assert (failed(found), found.first) == (
        {"chain"}, "sequence 9: its columns do not match its row digest"
    )  # fmt: skip


CORRECTED = [
    ("DELETE FROM corrections WHERE target_sequence = 4", "sequence 9, a correction of sequence 4, is not noted"),
    ("UPDATE corrections SET target_sequence = 3 WHERE target_sequence = 4",
     "sequence 9, a correction of sequence 4, is noted as one of sequence 3"),
    ("INSERT INTO corrections VALUES (1, 8)", "corrections say that sequence 8 corrects sequence 1, but it does not"),
    ("INSERT INTO corrections VALUES (1, 7), (2, 8)", "corrections say that sequence 7 corrects sequence 1"),
]  # fmt: skip


async def test_what_was_corrected_by_what_is_checked_both_ways(database: Database) -> None:
    await fill(database)
    async with sequencing(database) as sequencer:
        await record(sequencer, {"op": "void", "target": "k2"}, {"op": "amend", "target": "k3", "data": 1})
    assert (await check(database)).first is None
    for statement, first in CORRECTED:
        async with tampered(database, statement):
            found = await check(database)
        assert (failed(found), first in str(found.first)) == ({"corrections"}, True), (statement, found.first)
    async with tampered(database, "UPDATE events SET target_sequence = 5 WHERE ingress_sequence = 9"):
        assert failed(await check(database)) == {"chain", "corrections"}
    async with tampered(database, "UPDATE events SET data = '2' WHERE ingress_sequence = 10"):
        assert failed(await check(database)) == {"chain", "content"}


async def test_two_rows_that_changed_places_are_found(database: Database) -> None:
    await fill(database)
    await tamper(
        database,
        "UPDATE events SET ingress_sequence = -1 WHERE ingress_sequence = 4",
        "UPDATE events SET ingress_sequence = 4 WHERE ingress_sequence = 5",
        "UPDATE events SET ingress_sequence = 5 WHERE ingress_sequence = -1",
    )
    found = await check(database)
    assert failed(found) == {"chain", "identities"}
    assert found.first == "sequence 4: its identity says sequence 5"


async def test_a_jump_of_the_sequence_is_legal_only_where_a_commit_records_it(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, {})
        await tamper(database, "UPDATE ledger_head SET ingress_sequence = 100")
        await record(sequencer, {}, {"ts": DAY})
    found = await check(database)
    assert failed(found) == {"density"}
    assert found.first == "commit 2 (sequences 101 to 102) does not start after sequence 1"
    await tamper(database, "UPDATE commits SET skipped = 99 WHERE commit_id = 2", "UPDATE ledger_head SET skipped = 99")
    assert (await check(database)).report.ok
    await tamper(database, "UPDATE commits SET skipped = 98 WHERE commit_id = 2")
    assert failed(await check(database)) == {"density", "chain"}


async def test_a_cut_tail_with_a_consistent_head_is_found_by_the_anchor_only(
    database: Database, tmp_path: Path
) -> None:
    await fill(database)
    anchor = Anchor(database, tmp_path / "anchor.jsonl", 1)
    await anchor.close()
    assert failed(await check(database, tmp_path / "anchor.jsonl")) == set()
    await tamper(
        database,
        "DELETE FROM events WHERE commit_id = 4",
        "DELETE FROM commits WHERE commit_id = 4",
        "DELETE FROM identities WHERE ingress_sequence = 8",
        "UPDATE ledger_head SET (ingress_sequence, commit_id, source_timestamp, digest) = "
        "(SELECT last_sequence, commit_id, last_source_timestamp, digest FROM commits WHERE commit_id = 3)",
    )
    assert failed(await check(database)) == set()
    found = await check(database, tmp_path / "anchor.jsonl")
    assert failed(found) == {"anchor"}
    assert found.first is not None
    assert "the tail was cut off: commit 4" in found.first


async def test_a_ledger_whose_chain_was_recomputed_is_found_by_the_anchor(database: Database, tmp_path: Path) -> None:
    await fill(database)
    path = tmp_path / "anchor.jsonl"
    await Anchor(database, path, 1).close()
    path.write_text(path.read_text().replace('"digest":"', '"digest":"00')[:-1] + "\n")
    found = await check(database, path)
    assert failed(found) == {"anchor"}
    assert found.first is not None
    assert "had a different digest" in found.first


async def test_an_anchor_file_that_cannot_be_read_is_a_difference(database: Database, tmp_path: Path) -> None:
    (tmp_path / "anchor.jsonl").write_text("nonsense\n")
    found = await check(database, tmp_path / "anchor.jsonl")
    assert failed(found) == {"anchor"}


async def test_writers_may_continue_while_the_ledger_is_verified(database: Database) -> None:
    async with sequencing(database) as sequencer:
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await record(sequencer, {"idempotencyKey": str(len(written))}, {})
                written.append(1)

        written: list[int] = []
        writer = asyncio.create_task(write())
        try:
            for _ in range(10):
                assert failed(await check(database)) == set()
        finally:
            stop.set()
            await writer
    assert written


async def test_a_database_that_goes_away_meanwhile_is_reported_in_words(database: Database) -> None:
    await fill(database)
    for name in ("tidelock verify", "tidelock verify identities"):

        def cut(done: int, total: int, name: str = name) -> None:
            with database.connect_sync() as connection:
                query = b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
                connection.execute(query, [name])

        with pytest.raises(Unreachable, match="the database connection was lost"):
            await asyncio.to_thread(verify, database, Path("none"), cut)


async def test_progress_reaches_the_head(database: Database) -> None:
    await fill(database)
    told: list[tuple[int, int]] = []
    await asyncio.to_thread(verify, database, Path("none"), lambda done, total: told.append((done, total)))
    assert told == [(3, 8), (6, 8), (7, 8), (8, 8)]


@pytest.mark.parametrize(
    "text", ["0", "1", "-1", "0.5", "-0.000000001", "10000", "12345678.9", "999999999999999999.999999999", "100000000"]
)
def test_a_quantity_comes_back_from_its_binary_form(text: str) -> None:
    assert numeric_text(numeric_binary(text)) == text


async def test_the_database_gives_back_the_bytes_that_were_chained(database: Database) -> None:
    quantities = ["0", "1", "-1.5", "0.000000001", "999999999999999999.999999999", "10000", "1e17", "100000000.5"]
    events: list[dict[str, Any]] = [
        EVERY_FIELD,
        *({"quantity": text, "ts": n, "data": [n, None, 1e300]} for n, text in enumerate(quantities)),
    ]
    async with sequencing(database) as sequencer:
        sent = judged(events, sequencer.salts)
        await record(sequencer, *events)
    ((timestamp, received_at),) = await rows(database, "SELECT DISTINCT source_timestamp, received_at FROM events")
    with database.connect_sync() as connection:
        found = list(raw_rows(connection, 1000))
    expected = [
        event_row(number, 1, timestamp, received_at, event.occurred_at or 0, tail=tail, tail_digest=tail_digest(tail))
        for number, event in enumerate(sent, 1)
        if isinstance(event, Event) and (tail := event_tail(event))
    ]
    assert found == [row for row, _ in expected]
    assert [row_digests(row) for row in found] == [(digest, digest) for _, digest in expected]
