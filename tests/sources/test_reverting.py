"""`tidelock batches` and `tidelock revert`: what is listed, what is voided once, and what is left and why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import events, json_lines, run
from tests.recording import record, sequencing
from tidelock.postgres.database import Database
from tidelock.sources import reverting

DAY = "2026-01-01T00:00:00Z"
KEYED = """
[streams.devices]
key = "id"
columns = { id = "string" }
"""


def write(database: Database, *requests: list[dict[str, Any]]) -> None:
    async def recorded() -> None:
        async with sequencing(database) as sequencer:
            for request in requests:
                verdicts = await record(sequencer, *request)
                assert all(hasattr(verdict, "ingress_sequence") for verdict in verdicts), verdicts

    asyncio.run(recorded())


def voids(database: Database) -> list[tuple[Any, ...]]:
    found = events(database, "op, target_sequence, reason, tenant_id, batch_id")
    return [row[1:] for row in found if row[0] == "void"]


def reverted(database: Database, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = run(database, "revert", *arguments, "--json")
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_batches_are_listed_the_latest_first_with_what_was_corrected_of_them(database: Database) -> None:
    write(
        database,
        [{"batchId": "a", "ts": DAY, "idempotencyKey": "1"}, {"batchId": "b", "ts": DAY, "idempotencyKey": "2"}],
        [{"batchId": "a", "ts": "2026-02-01T00:00:00Z", "tenantId": "acme"}, {"stream": "no batch"}],
        [{"op": "amend", "target": "1", "quantity": 5, "batchId": "a"}],
    )
    found = json_lines(run(database, "batches", "--json"))
    assert [(each["batchId"], each["tenantId"], each["events"], each["corrected"]) for each in found] == [
        ("a", "acme", 1, 0), ("a", "default", 2, 1), ("b", "default", 1, 0),
    ]  # fmt: skip
    first = found[1]
    assert (first["firstSequence"], first["lastSequence"], first["corrections"], first["streams"]) == (1, 5, 1, ["s"])
    assert (first["occurredFrom"], first["occurredTo"]) == (DAY, DAY)
    assert [each["batchId"] for each in json_lines(run(database, "batches", "--tenant", "acme", "--json"))] == ["a"]
    assert len(json_lines(run(database, "batches", "-n", "1", "--json"))) == 1
    assert "corrected" in run(database, "batches").stdout


def test_a_revert_voids_every_event_once_page_by_page(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reverting, "PAGE", 3)
    write(database, [{"batchId": "a", "ts": DAY, "customerRef": str(n), "quantity": n} for n in range(7)])
    write(database, [{"batchId": "a", "ts": DAY, "tenantId": "acme"}, {"batchId": "other", "ts": DAY}])
    refused = run(database, "revert", "a")
    assert (refused.exit_code, voids(database)) == (2, [])
    assert 'several tenants have the batch "a": "acme", "default"' in " ".join(refused.output.split())
    assert reverted(database, "a", "--tenant", "acme", "--reason", "why")["voided"] == 1
    assert voids(database) == [(8, "why", "acme", None)]
    of = ("a", "--tenant", "default")
    told = reverted(database, *of)
    assert (told["voided"], told["duplicates"], told["leftCount"], told["finished"]) == (7, 0, 0, True)
    assert [row[0] for row in voids(database)] == [8, 1, 2, 3, 4, 5, 6, 7]
    assert voids(database)[1][1:] == ("revert of batch a", "default", None)
    again = reverted(database, *of)
    assert (again["voided"], again["duplicates"]) == (0, 7)
    shown = run(database, "revert", *of)
    assert (shown.exit_code, "0 voided, 7 void already, 0 left" in shown.stdout) == (0, True)


def test_what_cannot_be_voided_is_listed_with_why_and_is_exit_1(database: Database, tmp_path: Path) -> None:
    config = tmp_path / "tidelock.toml"
    config.write_text(KEYED)
    one = [{"idempotencyKey": key, "batchId": "a", "ts": DAY} for key in ("voided", "amended", "renewed", "own")]
    write(
        database,
        [*one, {"batchId": "a"}, {"stream": "devices", "ts": DAY, "batchId": "a", "data": {"id": "x"}}],
        [{"idempotencyKey": "another's", "ts": DAY}, {"idempotencyKey": "and this", "ts": DAY}],
        [
            {"op": "void", "target": "voided", "idempotencyKey": "by hand"},
            {"op": "amend", "target": "amended", "quantity": 1},
            {"op": "amend", "target": "renewed", "quantity": 1, "idempotencyKey": "r1"},
            {"op": "amend", "target": "own", "quantity": 2, "batchId": "a", "idempotencyKey": "own amended"},
            {"op": "amend", "target": "another's", "quantity": 3, "batchId": "a"},
            {"op": "void", "target": "and this", "batchId": "a"},
        ],
        [{"op": "amend", "target": "r1", "quantity": 2, "batchId": "a"}],
    )
    told = reverted(database, "a", "--config", config, exit_code=1)
    assert (told["voided"], told["duplicates"], told["leftCount"]) == (2, 1, 5)
    assert [(each["ingressSequence"], each["code"]) for each in told["left"]] == [
        (2, "amended"), (5, "no_key"), (6, "keyed_stream"), (13, "correction"), (14, "correction"),
    ]  # fmt: skip
    # The batch's own amendments stand for what they amended, also where another amendment lies between.
    assert [row[0] for row in voids(database)[2:]] == [15, 12]
    assert "amended by sequence 10" in told["left"][0]["message"]
    shown = run(database, "revert", "a", "--config", config)
    assert shown.exit_code == 1
    assert "2 left: corrections of events of another batch" in shown.stdout


def test_what_is_no_batch_is_said_in_words(database: Database) -> None:
    write(database, [{"batchId": "a", "ts": DAY}])
    for arguments in (["b"], ["a", "--tenant", "acme"], ["b", "--preview"]):
        result = run(database, "revert", *arguments)
        assert (result.exit_code, "`tidelock batches` lists them" in result.stderr) == (2, True), result.stderr
    assert run(database, "revert", "a", "--reason", "x" * 256).exit_code == 2
    behind = run(database, "revert", "a", "--preview")
    assert behind.exit_code == 3
    assert "the fold is at sequence 0, and this batch with its corrections ends at 1" in behind.stderr


def test_an_import_names_a_batch_that_can_be_reverted(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    rows = [{"stream": "calls", "ts": DAY, "customerRef": str(n)} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**rows[0], "batchId": "own", "ts": 1}]))
    (told,) = json_lines(run(database, "import", file, "--json"))
    name, digits = told["batchId"].split(":")
    assert (name, len(digits)) == ("calls.jsonl", 12)
    assert sorted(row[0] for row in events(database, "batch_id")) == [told["batchId"]] * 3 + ["own"]
    assert reverted(database, told["batchId"])["voided"] == 3
    (again,) = json_lines(run(database, "import", file, "--json", "--batch", "march"))
    assert (again["batchId"], again["duplicates"]) == ("march", 4), "a batch is no part of an event's identity"
    assert run(database, "import", file, "--batch", "x" * 256).exit_code == 2
