"""`tidelock export`: the ledger in each format, complete or not there, and an import makes the same ledger of it."""

import asyncio
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.commandline import events, json_lines, run
from tests.conftest import _made
from tests.recording import record, sequencing
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres

DAY = "2026-01-01T00:00:00Z"
SENT: list[dict[str, Any]] = [
    {"tenantId": "acme", "stream": "calls", "customerRef": 'a "b", c\nd', "resourceId": "", "ts": DAY,
     "quantity": "-1.5", "data": {"b": 1.0, "a": ["ü", None]}, "op": "delete", "causalityKey": "run",
     "correlationId": "c", "causationId": "k", "idempotencyKey": "k1", "source": "sdk"},
    {"stream": "calls", "ts": "2026-01-02T00:00:00.123456789Z", "data": [1, "null"]},
    {"stream": "other", "idempotencyKey": "without time", "data": "text"},
    {"stream": "other"},
    {"stream": "other"},
]  # fmt: skip
#: an event, its amendment, which keeps the data and is amended in its turn, and a void
CORRECTED: list[dict[str, Any]] = [
    {"stream": "calls", "ts": DAY, "customerRef": "c", "quantity": 1, "data": {"a": 1}, "idempotencyKey": "first"},
    {"stream": "calls", "ts": DAY, "quantity": 1, "idempotencyKey": "wrong", "batchId": "b"},
    {"stream": "calls", "op": "amend", "target": "first", "quantity": 2, "reason": "twice", "idempotencyKey": "second"},
    {"stream": "calls", "op": "amend", "target": "second", "data": {"a": 2}},
    {"stream": "calls", "op": "void", "target": "wrong", "batchId": "b"},
]
#: what an import must bring to another ledger
KEPT = (
    "tenant_id, stream, customer_ref, resource_id, op, occurred_at, quantity::text, data::text, causality_key, "
    "correlation_id, causation_id, source, target, reason"
)


@pytest.fixture
def ledger(database: Database) -> Database:
    async def fill() -> None:
        async with sequencing(database) as sequencer:
            await record(sequencer, *SENT[:2])
            await sequencer.control({"type": "tick"})
            await record(sequencer, *SENT[2:])

    asyncio.run(fill())
    return database


@pytest.fixture
def other(postgres: EmbeddedPostgres, template: str) -> Iterator[Database]:
    """A second ledger."""
    with _made(postgres, f"TEMPLATE {template} STRATEGY file_copy") as made:
        yield made


def sequences(database: Database, *arguments: str) -> list[int]:
    return [event["ingressSequence"] for event in json_lines(run(database, "export", *arguments))]


def test_jsonl_has_the_flat_shape_of_an_event_in_ledger_order(ledger: Database) -> None:
    found = json_lines(run(ledger, "export"))
    assert [event["ingressSequence"] for event in found] == [1, 2, 3, 4, 5, 6]
    first = found[0]
    assert {name: first[name] for name in SENT[0] if name != "ts"} == {
        name: SENT[0][name] for name in SENT[0] if name != "ts"
    }
    assert (first["occurredAt"], first["keySource"], first["commitId"]) == (DAY, "client", 1)
    assert first["sourceTimestamp"].isdigit()
    assert found[2]["stream"] == "_tidelock"


def test_json_is_jsonl_to_stdout(ledger: Database) -> None:
    assert run(ledger, "export", "--json").stdout == run(ledger, "export").stdout
    assert run(ledger, "export", "--json", "--format", "jsonl").exit_code == 0
    for other in (["-o", "a.jsonl"], ["--format", "csv"]):
        refused = run(ledger, "export", "--json", *other)
        assert refused.exit_code == 2
        assert "--json means --format jsonl on stdout" in refused.stderr


def test_filters_choose(ledger: Database) -> None:
    assert sequences(ledger, "--stream", "calls") == [1, 2]
    assert sequences(ledger, "--tenant", "acme") == [1]
    assert sequences(ledger, "--customer", str(SENT[0]["customerRef"])) == [1]
    assert sequences(ledger, "--causality", "run") == [1]
    assert sequences(ledger, "--after", "2", "--before", "5") == [3, 4]
    assert sequences(ledger, "--from", DAY, "--to", "2026-01-02T00:00:00.123456789Z") == [1]
    assert sequences(ledger, "--from", "1767225600000", "--to", "1767225600001") == [1]
    assert sequences(ledger, "--after", "6") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "yesterday"], "--from: 'yesterday' is not an RFC 3339"),
        (["--format", "xml"], "'xml' is not a known format"),
        (["-o", "a.xml"], "the file extension does not show"),
        (["-o", "no/such/place.csv"], "no/such/place.csv cannot be written"),
    ],
)  # fmt: skip
def test_wrong_use_is_said_in_words(
    database: Database, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(database, "export", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_csv_tells_nothing_from_an_empty_text(ledger: Database, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    assert run(ledger, "export", "-o", file).exit_code == 0
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert rows[0]["customerRef"] == SENT[0]["customerRef"]
    assert json.loads(rows[0]["data"]) == SENT[0]["data"]
    assert ',"",' in file.read_text()


def test_parquet_has_integers_instants_and_decimals(ledger: Database, tmp_path: Path) -> None:
    assert run(ledger, "export", "-o", tmp_path / "a.parquet").exit_code == 0
    table = pq.read_table(tmp_path / "a.parquet")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds["ingressSequence"] == kinds["sourceTimestamp"] == "int64"
    assert kinds["occurredAt"] == "timestamp[ns, tz=UTC]"
    assert kinds["quantity"] == "decimal128(38, 9)"
    assert table["occurredAt"].cast("int64").to_pylist()[1] == 1_767_312_000_123_456_789
    assert table["data"].to_pylist()[2:] == ['{"type":"tick"}', '"text"', None, None]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson.zst", "a.csv", "a.csv.gz", "a.parquet"])
def test_an_import_of_an_export_makes_the_same_events_in_the_same_order(
    ledger: Database, other: Database, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    assert run(ledger, "export", "-o", file).exit_code == 0
    found = json_lines(run(other, "import", file, "--json"))[0]
    assert (found["accepted"], found["rejected"], found["conflicts"], found["skipped"]) == (5, 0, 0, 1)
    wanted = [row for row in events(ledger, KEPT) if row[1] != "_tidelock"]
    assert events(other, KEPT) == wanted
    # Again, from another format, and into the ledger it came from: nothing is recorded twice that had an identity.
    run(ledger, "export", "-o", tmp_path / "again.jsonl")
    again = json_lines(run(other, "import", tmp_path / "again.jsonl", "--json"))[0]
    assert (again["accepted"], again["duplicates"], again["conflicts"]) == (0, 5, 0)
    back = json_lines(run(ledger, "import", file, "--json"))[0]
    assert (back["duplicates"], back["accepted"], back["conflicts"], back["rejected"]) == (3, 2, 0, 0)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_corrections_are_exported_and_imported_with_the_events_that_they_correct(
    database: Database, other: Database, tmp_path: Path, name: str
) -> None:
    async def fill() -> None:
        async with sequencing(database) as sequencer:
            await record(sequencer, *CORRECTED)

    asyncio.run(fill())
    file = tmp_path / name
    assert run(database, "export", "-o", file).exit_code == 0
    exported = json_lines(run(database, "export", "--batch", "b"))
    assert [(event["op"], event["targetSequence"]) for event in exported] == [("upsert", None), ("void", 2)]
    found = json_lines(run(other, "import", file, "--json"))[0]
    assert (found["accepted"], found["rejected"], found["conflicts"]) == (5, 0, 0)
    kept = f"{KEPT}, target_sequence"
    assert events(other, kept) == events(database, kept)
    assert [row[0] for row in events(other, "batch_id")] == [*[found["batchId"], "b"], *[found["batchId"]] * 2, "b"]
    for ledger in (database, other):
        again = json_lines(run(ledger, "import", file, "--json"))[0]
        assert (again["duplicates"], again["conflicts"], again["rejected"]) == (5, 0, 0)


def test_a_file_is_replaced_only_by_a_complete_one(ledger: Database, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("before")
    with ledger.connect_sync() as connection:
        connection.execute(b"ALTER TABLE events RENAME TO hidden")
    assert run(ledger, "export", "-o", file).exit_code == 3
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_long_ledger_is_read_page_by_page(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill() -> None:
        async with sequencing(database) as sequencer:
            await record(sequencer, *({"customerRef": str(n), "data": "x" * n} for n in range(500)))

    asyncio.run(fill())
    monkeypatch.setattr("tidelock.sources.files.exporting._PAGE_ROWS", 7)
    monkeypatch.setattr("tidelock.sources.files.exporting._PAGE_BYTES", 10_000)
    assert sequences(database) == list(range(1, 501))
