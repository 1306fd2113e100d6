"""`tidelock backfill`: an older table in its own order, each row once, through stops and kills, beside live ingest."""

import json
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import events, process, run
from tests.conftest import Databases
from tests.sources import oldtables
from tidelock.ledger.verify import verify
from tidelock.postgres.database import Database

JANUARY_2 = 1_767_312_000 * 10**9


@pytest.fixture
def old(databases: Databases) -> Iterator[Database]:
    """The database of the older table."""
    with databases() as made:
        yield made


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(database: Database, old: Database, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = run(database, "backfill", "--from", old.url, "--table", "workflow_events", "--json", *arguments)
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def counts(found: dict[str, Any]) -> tuple[int, ...]:
    return tuple(found[name] for name in ("accepted", "duplicates", "conflicts", "rejected"))


def refusal(database: Database | None, *arguments: object, exit_code: int = 2) -> str:
    result = run(database, "backfill", *arguments)
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def test_rows_come_in_the_order_of_receipt_occurrence_and_id_and_keep_their_receipt(
    database: Database, old: Database
) -> None:
    oldtables.make(old, 2500)
    found = report(database, old)
    assert counts(found) == (2500, 0, 0, 0)
    recorded = oldtables.recorded(database)
    assert [row[0] for row in recorded] == oldtables.order(old)
    assert {row[1] for row in recorded} == {JANUARY_2 + minute * 60 * 10**9 for minute in range(7)}
    sizes = [sum(row[2] == time for row in recorded) for time in sorted({row[2] for row in recorded})]
    assert sizes == [1000, 1000, 500], "collections of at most a thousand"
    assert verify(database, Path("none"), lambda *_: None).report.ok


def test_what_the_columns_of_a_workflow_table_become(database: Database, old: Database) -> None:
    oldtables.make(old, 40)
    oldtables.change(old, "UPDATE workflow_events SET correlation_id = '00000000-0000-0000-0000-00000000000a'")
    report(database, old)
    columns = "stream, source, correlation_id, data::text, occurred_at, received_at, tenant_id, key_source::text"
    with database.connect_sync() as connection:
        found = connection.execute(
            f"SELECT {columns} FROM events WHERE idempotency_key = 'workflow_events:7'".encode()
        ).fetchone()
    assert found is not None
    assert found[:3] == ("step", "engine", "00000000-0000-0000-0000-00000000000a")
    assert json.loads(found[3]) == {"n": 7, "text": "a\nb", "metadata": {"v": 1}}
    assert found[4] == 1_767_225_600 * 10**9 + 7 * 7919 % 13 * 3600 * 10**9 + 1000
    assert found[6:] == ("default", "c")
    without_time = events(database, "occurred_at = received_at")
    assert without_time.count((True,)) == 2, "17 and 34"


def test_a_second_run_records_nothing_and_a_later_one_what_was_added(database: Database, old: Database) -> None:
    oldtables.make(old, 300)
    report(database, old)
    before = events(database, "ingress_sequence, idempotency_key")
    again = report(database, old)
    assert (counts(again), again["resumedAfter"]) == ((0, 0, 0, 0), 300)
    restarted = report(database, old, "--restart")
    assert counts(restarted) == (0, 300, 0, 0)
    assert events(database, "ingress_sequence, idempotency_key") == before
    oldtables.change(old, "INSERT INTO workflow_events VALUES (1000, 'late', NULL, NULL, '2026-02-01')")
    assert counts(report(database, old)) == (1, 0, 0, 0)
    oldtables.change(old, "INSERT INTO workflow_events VALUES (1001, 'late', NULL, NULL, '2025-02-01')")
    behind = report(database, old, exit_code=1)
    assert (counts(behind), behind["behind"]) == ((0, 0, 0, 0), 1), "a row behind the position is not passed over"
    assert counts(report(database, old, "--restart")) == (1, 301, 0, 0)


def test_a_row_that_cannot_be_recorded_is_reported_by_its_id_also_after_a_later_run(
    database: Database, old: Database, tmp_path: Path
) -> None:
    oldtables.make(old, 60)
    oldtables.change(
        old,
        "ALTER TABLE workflow_events ALTER received_at DROP NOT NULL",
        "UPDATE workflow_events SET received_at = 'infinity' WHERE id = 3",
        "UPDATE workflow_events SET occurred_at = '2999-01-01' WHERE id = 4",
        "UPDATE workflow_events SET payload = '[1]' WHERE id = 5",
        "UPDATE workflow_events SET type = '' WHERE id = 6",
        "UPDATE workflow_events SET received_at = NULL WHERE id = 7",
        "UPDATE workflow_events SET received_at = '2199-01-01' WHERE id = 8",
    )
    for _ in range(2):
        found = report(database, old, "--rejects", "rejects.jsonl", exit_code=1)
        assert {problem["id"] for problem in found["problems"]} == {"3", "4", "5", "6", "7", "8"}
        assert (found["total"]["rejected"], found["unplaced"]) == (5, 1)
        written = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
        assert len(written) == 6
    assert len(oldtables.recorded(database)) == 54
    shown = run(database, "backfill", "--from", old.url, "--table", "workflow_events")
    assert "id 5" in shown.stdout
    assert "not a JSON object" in shown.stdout


def test_a_dry_run_shows_mapping_and_first_rows_and_makes_no_ledger(old: Database, tmp_path: Path) -> None:
    oldtables.make(old, 20)
    shown = run(None, "backfill", "--from", old.url, "--table", "workflow_events", "--dry-run", "--map", "source=-")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"metadata\s+jsonb\s+data\.metadata\s+guess", shown.stdout)
    assert re.search(r"source\s+text\s+left out\s+--map", shown.stdout)
    assert "workflow_events:{id}" in shown.stdout
    assert shown.stdout.count('"receivedAt":"2026-01-02T00:00:00Z"') >= 2
    assert not (tmp_path / ".tidelock").exists()
    told = run(None, "backfill", "--from", old.url, "--table", "workflow_events", "--dry-run", "--json")
    assert json.loads(told.stdout)["rows"] == 20


def test_columns_are_named_in_the_file_and_flags_go_before_it(
    database: Database, old: Database, tmp_path: Path
) -> None:
    oldtables.change(
        old,
        'CREATE TABLE "Calls" (uid text, "Kind" text, at bigint, got timestamp, units numeric, who text)',
        "INSERT INTO \"Calls\" VALUES ('b', 'x', 1767225600123, '2026-01-01 00:00:01.5', 2.50, 'cus_1'), "
        "('B', 'x', 1767225600123, '2026-01-01 00:00:01.5', NULL, 'cus_2')",
    )
    (tmp_path / "tidelock.toml").write_text(
        f'[backfill]\nurl = "{old.url}"\ntable = "calls"\n'
        '[backfill.map]\nuid = "id"\nKind = "data.kind"\nat = "ts"\ngot = "receivedAt"\nunits = "quantity"\n'
    )
    result = run(database, "backfill", "--map", "Kind=stream", "--map", "who=customerRef")
    assert result.exit_code == 0, result.output
    assert events(database, "idempotency_key, stream, occurred_at, received_at, quantity::text, customer_ref") == [
        ("B", "x", 1767225600123 * 10**6, 1767225601500 * 10**6, None, "cus_2"),
        ("b", "x", 1767225600123 * 10**6, 1767225601500 * 10**6, "2.5", "cus_1"),
    ]


def test_a_live_producer_that_sends_an_old_row_s_key_is_the_same_event(database: Database, old: Database) -> None:
    oldtables.change(
        old,
        "CREATE TABLE workflow_events (id uuid, type text, received_at timestamptz, payload text)",
        "INSERT INTO workflow_events VALUES ('00000000-0000-0000-0000-000000000001', 's', '2026-01-01', '{\"a\":1}')",
    )
    file = Path("live.jsonl")
    file.write_text('{"stream":"s","idempotencyKey":"00000000-0000-0000-0000-000000000001","data":{"a":1}}')
    assert run(database, "import", file).exit_code == 0
    assert counts(report(database, old)) == (0, 1, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--map", "nosuch=ts"], "--map: workflow_events has no column 'nosuch'"),
        (["--map", "type=steam"], "there is no field 'steam', did you mean stream?"),
        (["--map", "type"], "is not of the form COLUMN=FIELD"),
        (["--map", "id=-"], "no column of workflow_events is recognised as id"),
        (["--map", "received_at=-"], "pass --map COLUMN=receivedAt"),
        (["--map", "type=-"], "pass --map COLUMN=stream, or --stream NAME"),
        (["--map", "source=ts"], "workflow_events.source is text, and ts must be timestamp with time zone"),
        (["--map", "payload=id"], "workflow_events.payload is jsonb, and id must be text, a uuid or a number"),
        (["--map", "source=stream", "--map", "type=stream"], "two columns for stream; leave one out with --map"),
        (["--table", "workflow_event"], "did you mean workflow_events"),
    ],
)
def test_a_bad_mapping_is_reported_with_what_to_change_before_anything_is_recorded(
    database: Database, old: Database, arguments: list[str], told: str
) -> None:
    oldtables.make(old, 3)
    assert told in refusal(database, "--from", old.url, "--table", "workflow_events", *arguments)
    assert events(database) == []


def test_refused_credentials_and_servers_that_are_not_there_are_reported_without_the_password(
    database: Database, old: Database
) -> None:
    wrong = re.sub(r"//([^:]+):[^@]+@", r"//\1:secret@", old.url)
    told = refusal(database, "--from", wrong, "--table", "t")
    assert "rejects this login" in told
    assert "secret" not in told
    assert "rejects this login" in refusal(database, "--from", old.url + "_not_there", "--table", "t")
    away = refusal(database, "--from", "postgresql://u:secret@127.0.0.1:1/db", "--table", "t", exit_code=3)
    assert "cannot be reached" in away
    assert "secret" not in away
    assert "--from URL is missing" in refusal(database)
    assert "not a URL" in refusal(database, "--from", "nonsense secret", "--table", "t")
    oldtables.make(old, 1)
    name = "reader_of_nothing"
    oldtables.change(old, f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    limited = re.sub(r"//[^@]+@", f"//{name}:pw@", old.url)
    assert "grant SELECT" in refusal(database, "--from", limited, "--table", "workflow_events")
    oldtables.change(old, f"DROP ROLE {name}")


def killed_at_random(database: Database, old: Database, tmp_path: Path, rows: int, kills_max: int, seed: int) -> int:
    """Run it, kill it at some moment, again and again until it ends by itself; gives how often it was killed."""
    chance, kills = random.Random(seed), 0
    flags = ["--database-url", database.url, "--from", old.url, "--table", "workflow_events", "--json"]
    while True:
        backfill = process("backfill", *flags, cwd=tmp_path)
        before = oldtables.count(database)
        if before < rows * 0.9 and kills < kills_max:
            # Not before it has begun to record, or it would be killed at the start each time.
            while oldtables.count(database) == before and backfill.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.3 if rows < 10**5 else 3))
            backfill.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            backfill.communicate(timeout=60)
            kills += 1
            continue
        out, told = backfill.communicate(timeout=600)
        assert backfill.returncode == 0, told
        assert json.loads(out)["finished"] is True
        return kills


def prove_kills(database: Database, old: Database, tmp_path: Path, rows: int, kills_max: int) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    oldtables.make(old, rows, seed)
    started = time.monotonic()
    flags = ["--database-url", database.url, "--import-chunk-events", "1"]
    live = process("import", _live(tmp_path), *flags, cwd=tmp_path)
    kills = killed_at_random(database, old, tmp_path, rows, kills_max=kills_max, seed=seed)
    live.send_signal(signal.SIGTERM)
    live.communicate(timeout=60)
    took_s = time.monotonic() - started
    recorded = oldtables.recorded(database)
    assert [row[0] for row in recorded] == oldtables.order(old), "the order is exactly that of the older table"
    sizes: dict[int, int] = {}
    for row in recorded:
        sizes[row[2]] = sizes.get(row[2], 0) + 1
    assert set(list(sizes.values())[:-1]) == {1000}, "the same collections as without a kill"
    own = len(events(database, "1")) - rows
    assert own > 0, "live ingest went on"
    assert verify(database, Path("none"), lambda *_: None).report.ok
    again = report(database, old, "--restart")
    assert counts(again) == (0, rows, 0, 0)
    assert oldtables.recorded(database) == recorded
    print(f"{rows} rows, {kills} kills, {own} live events meanwhile, {took_s:.0f} s")


def _live(folder: Path) -> Path:
    file = folder / "live.jsonl"
    file.write_text("".join(f'{{"stream":"live","idempotencyKey":"live-{n}"}}\n' for n in range(200_000)))
    return file


@pytest.mark.timeout(900)
def test_killed_at_random_points_beside_live_ingest_it_gives_the_same_ledger(
    database: Database, old: Database, tmp_path: Path
) -> None:
    prove_kills(database, old, tmp_path, 6_000, 2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_rows_with_equal_timestamps_killed_at_random_points(
    database: Database, old: Database, tmp_path: Path
) -> None:
    prove_kills(database, old, tmp_path, 1_000_000, 12)
