"""A sequence database as operators see it: by `status` and `/metrics`."""

import asyncio
import json
from pathlib import Path

import httpx

from tests.cli.commandline import run
from tests.conftest import Databases
from tests.serving import Start
from tidelock.postgres.database import Database


def status(url: str, sequence_url: str) -> dict[str, object]:
    result = run(Database(url), "status", "--json", env={"TIDELOCK_EVENT_SEQUENCE_DATABASE_URL": sequence_url})
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)["sequence"]
    return found


async def test_status_and_metrics_say_where_numbers_come_from_and_since_when(
    start: Start, databases: Databases
) -> None:
    with databases() as sequences:
        async with start(event_sequence_database_url=sequences.url) as server, httpx.AsyncClient() as client:
            url = server.ledger.database.url
            before = await asyncio.to_thread(status, url, sequences.url)
            assert (before["source"], before["since"]) == ("local", None)
            await client.post(f"{server.url}/v1/events", json=[{"stream": "s"}, {"stream": "s"}])
            async with await sequences.connect() as connection:
                await connection.execute("SELECT setval('tidelock_sequence', 100)")
            answer = await client.post(f"{server.url}/v1/events", json=[{"stream": "s"}])
            assert answer.json()["results"][0]["ingressSequence"] == 101
            found = await asyncio.to_thread(status, url, sequences.url)
            assert (found["source"], found["skipped"], found["lastNumber"]) == ("remote", 98, 101)
            assert isinstance(found["since"], str)
            health = (await client.get(f"{server.url}/admin/event-health")).json()["sequence"]
            assert health == {name: found[name] for name in ("source", "since", "skipped")}
            metrics = (await client.get(f"{server.url}/metrics")).text
            assert "tidelock_sequence_remote 1.0" in metrics
            assert 'tidelock_sequence_commits_total{outcome="remote"} 2.0' in metrics
            assert "tidelock_skipped_sequences 98.0" in metrics


def test_status_reports_a_sequence_database_that_is_away(database: Database) -> None:
    shown = run(database, "status", env={"TIDELOCK_EVENT_SEQUENCE_DATABASE_URL": "postgresql://u:pw@127.0.0.1:1/s"})
    assert shown.exit_code == 0, shown.output
    assert "by the ledger; 127.0.0.1:1/s is Cannot connect" in shown.stdout
    assert "pw" not in shown.stdout


def test_a_url_of_no_database_is_reported_at_startup_without_its_password(database: Database, tmp_path: Path) -> None:
    url = "postgresql://u:pw with space@h"
    file = tmp_path / "a.jsonl"
    file.write_text('{"stream":"s"}')
    shown = run(database, "import", file, env={"TIDELOCK_EVENT_SEQUENCE_DATABASE_URL": url})
    assert shown.exit_code == 2, shown.output
    assert "event_sequence_database_url" in shown.stderr
    assert "pw" not in shown.stderr
