"""Backup and restore by Postgres's own tools: a restored ledger is whole, goes on, and a lost tail is found."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from tests.cli.commandline import run
from tests.recording import record, sequencing
from tidelock.ledger.anchor import Anchor
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import find_binaries


def tool(name: str, *words: object) -> None:
    subprocess.run([find_binaries(None) / name, *map(str, words)], check=True, capture_output=True)


def sent(database: Database, *keys: str) -> list[str]:
    """Record an event under each key. Gives the verdicts."""

    async def send() -> list[str]:
        async with sequencing(database) as sequencer:
            events = [{"stream": "s", "idempotencyKey": key, "quantity": "1.50"} for key in keys]
            return [type((await record(sequencer, event))[0]).__name__.lower() for event in events]

    return asyncio.run(send())


def anchored(database: Database, anchor: Path) -> None:
    asyncio.run(Anchor(database, anchor, 1).close())


def test_a_restored_ledger_is_proven_and_continues_and_what_it_lost_is_reported(
    database: Database, empty_database: Database, tmp_path: Path
) -> None:
    dump, anchor = tmp_path / "ledger.dump", tmp_path / "anchor.jsonl"
    assert sent(database, "a", "b") == ["accepted", "accepted"]
    anchored(database, anchor)
    tool("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={database.url}")
    tool("pg_restore", "--exit-on-error", f"--dbname={empty_database.url}", dump)

    assert run(empty_database, "verify", "--anchor", anchor).exit_code == 0
    assert run(empty_database, "migrate").exit_code == 0

    assert sent(database, "c") == ["accepted"]
    anchored(database, anchor)
    lost = run(empty_database, "verify", "--anchor", anchor)
    assert lost.exit_code == 1
    assert "the tail was cut off" in lost.stdout

    refused = run(empty_database, "serve", "--data", tmp_path, env={"TIDELOCK_ANCHOR": str(anchor)})
    assert refused.exit_code == 1
    assert "sequences 3 to 3 are missing" in " ".join(refused.output.split())

    assert sent(empty_database, "b", "c") == ["duplicate", "accepted"], "producers send again what was lost"
    assert run(empty_database, "verify", "--anchor", tmp_path / "new.jsonl").exit_code == 0
