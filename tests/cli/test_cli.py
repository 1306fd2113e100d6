"""The command line: exit codes, JSON, help, signals, and messages instead of traces."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.commands import app as bench
from tests.cli.commandline import json_lines, process, run
from tests.recording import record, sequencing
from tidelock import __version__
from tidelock.postgres.database import Database
from tidelock.settings import TABLE

DAY = "2026-01-01T00:00:00Z"
COMMANDS = [
    "up", "serve", "migrate", "import", "export", "tail", "trace", "status", "usage", "explain", "changes", "drain",
    "verify", "keys", "salts",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of the test's own, and no settings but the test's."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("TIDELOCK_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)


def fill(database: Database, *sent: dict[str, Any]) -> None:
    async def send() -> None:
        async with sequencing(database) as sequencer:
            for event in sent:
                await record(sequencer, event)

    asyncio.run(send())


CAUSED = [
    {"stream": "orders", "causalityKey": "run", "idempotencyKey": "o", "ts": DAY},
    {"stream": "other", "ts": DAY},
    {"stream": "payments", "causalityKey": "run", "idempotencyKey": "p", "causationId": "o", "quantity": "2.50"},
    {"stream": "mails", "causalityKey": "run", "causationId": "p", "ts": DAY},
    {"stream": "mails", "causalityKey": "run", "causationId": "unknown", "ts": "2026-01-02T00:00:00Z"},
]


def test_every_command_has_help_with_an_example_or_a_list() -> None:
    listed = run(None, "--help").stdout
    for command in COMMANDS:
        assert command in listed
        shown = run(None, command, "--help").stdout
        assert f"tidelock {command}" in shown
        assert "--config" in shown or "COMMAND" in shown
        assert "<bool>" not in listed + shown, "a flag takes no value"


def test_the_version_is_shown() -> None:
    assert run(None, "--version").stdout == f"tidelock {__version__}\n"


def test_flags_come_from_the_table_of_settings() -> None:
    shown = " ".join(run(None, "up", "--help", env={"COLUMNS": "400"}).stdout.split())
    for name in ("data", "host", "port", "database_url", "streams_open", "log_level"):
        assert TABLE[name].flag in shown
        assert TABLE[name].spec.help in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "No such command"),
        (["tail", "--bogus"], "No such option"),
        (["tail", "-n", "many"], "Invalid value for '-n'"),
        (["status", "--config", "missing.toml"], "missing.toml"),
        (["up", "--port", "99999"], "from 0 to 65535"),
        (["up", "--log-level", "loud"], "debug info warning error"),
        (["status", "--database-url", "::nonsense::"], "should look like postgresql://"),
        (["keys", "create", "--tenant", "a"], "--scope"),
    ],
)  # fmt: skip
def test_wrong_use_exits_with_two_and_says_what_is_wrong(arguments: list[str], said: str) -> None:
    result = run(None, *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_an_unknown_setting_names_the_nearest_known_one(tmp_path: Path) -> None:
    (tmp_path / "tidelock.toml").write_text("prot = 1\n")
    result = run(None, "status")
    assert result.exit_code == 2
    assert "port" in result.stderr


@pytest.mark.parametrize("command", [["status"], ["tail"], ["verify"], ["export"], ["trace", "x"], ["keys", "list"]])
def test_looking_at_a_ledger_that_is_not_there_makes_none_and_exits_with_three(
    command: list[str], tmp_path: Path
) -> None:
    result = run(None, *command, "--data", tmp_path / "none")
    assert result.exit_code == 3
    assert "create one with `tidelock up`" in result.stderr
    assert not (tmp_path / "none").exists()


def test_a_database_that_does_not_answer_exits_with_three() -> None:
    result = run(None, "status", "--database-url", "postgresql://u:secret@127.0.0.1:1/x")
    assert result.exit_code == 3
    assert "127.0.0.1:1" in result.stderr
    assert "secret" not in result.output


@pytest.mark.parametrize("command", [["migrate"], ["import", "a.jsonl"], ["up", "--port", "0"]])
def test_a_database_user_that_may_not_create_the_ledger_gets_an_error(
    empty_database: Database, command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with empty_database.connect_sync() as connection:
        connection.execute(b"DO $$ BEGIN CREATE ROLE weak LOGIN PASSWORD 'weak'; "
                           b"EXCEPTION WHEN duplicate_object THEN END $$")  # fmt: skip
    weak = re.sub("//.*@", "//weak:weak@", empty_database.url)
    result = run(None, *command, "--database-url", weak)
    assert result.exit_code == 2
    assert "the database user may not do this" in result.stderr


def test_migrate_makes_a_ledger_and_is_needed_before_one_can_be_read(empty_database: Database) -> None:
    before = run(empty_database, "status")
    assert before.exit_code == 3
    assert "tidelock migrate" in before.stderr
    assert "0001_ledger" in run(empty_database, "migrate").stdout
    assert "up to date" in run(empty_database, "migrate").stdout
    assert {line["state"] for line in json_lines(run(empty_database, "migrate", "--json"))} == {"applied"}
    assert run(empty_database, "status").exit_code == 0


def test_tail_shows_the_last_events_in_ledger_order(database: Database) -> None:
    fill(database, *CAUSED)
    assert [line["ingressSequence"] for line in json_lines(run(database, "tail", "-n", 2, "--json"))] == [4, 5]
    assert [line["stream"] for line in json_lines(run(database, "tail", "--stream", "mails", "--json"))] == [
        "mails"
    ] * 2
    lines = run(database, "tail").stdout.splitlines()
    assert len(lines) == 5
    assert re.fullmatch(r" +3  \S+ +payments  2.5", lines[2].rstrip())
    assert run(database, "tail", "-n", 0).stdout == ""


def test_tail_says_which_event_a_correction_corrects_and_why(database: Database) -> None:
    first = {"stream": "calls", "customerRef": "ada", "quantity": "2", "idempotencyKey": "first"}
    amendment = {"op": "amend", "stream": "calls", "target": "first", "quantity": "3", "idempotencyKey": "second"}
    fill(database, first, amendment, {"op": "void", "stream": "calls", "target": "second", "reason": "sent twice"})
    lines = [line.rstrip() for line in run(database, "tail").stdout.splitlines()]
    assert re.fullmatch(r" +2  \S+ +calls  ada  amend of 1  3", lines[1])
    assert re.fullmatch(r" +3  \S+ +calls  ada  void of 2  sent twice", lines[2])


def test_what_a_terminal_would_take_for_a_command_is_shown_instead(database: Database) -> None:
    fill(database, {"stream": "s\x1b[2J", "customerRef": "\x1b]0;title\x07", "causalityKey": "run\x9b\u202e"})
    for shown in (run(database, "tail").stdout, run(database, "trace", "run\x9b\u202e").stdout):
        assert not re.search("[\x07\x1b\x9b\u202e]", shown)
        assert r"s\x1b[2J" in shown
        assert r"\x1b]0;title" in shown


def test_tail_continues_after_a_sequence(database: Database) -> None:
    fill(database, *CAUSED, *({} for _ in range(10)))
    assert [line["ingressSequence"] for line in json_lines(run(database, "tail", "--after", 2, "--json"))] == [
        *range(3, 16)
    ]
    few = json_lines(run(database, "tail", "--after", 2, "-n", 1, "--stream", "mails", "--json"))
    assert [line["ingressSequence"] for line in few] == [5]
    assert run(database, "tail", "--after", 15).stdout == ""
    assert run(database, "tail", "--after", -1).exit_code == 2


def test_trace_shows_each_event_below_the_one_that_caused_it(database: Database) -> None:
    fill(database, *CAUSED)
    found = json_lines(run(database, "trace", "run", "--json"))
    assert [(line["ingressSequence"], line["parent"]) for line in found] == [(1, None), (3, 1), (4, 3), (5, None)]
    lines = [line.rstrip() for line in run(database, "trace", "run").stdout.splitlines()]
    assert lines[0] == "run: 4 events"
    assert lines[1].startswith("├── 1  ")
    assert lines[2].startswith("│   └── 3  ")
    assert lines[3].startswith("│       └── 4  ")
    assert lines[4].startswith("└── 5  ")
    nothing = run(database, "trace", "other")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


def test_a_parent_outside_the_trace_is_named(database: Database) -> None:
    fill(database, {"idempotencyKey": "o"}, {"causalityKey": "run", "causationId": "o"})
    assert "caused by 1" in run(database, "trace", "run").stdout


def test_status_shows_where_the_ledger_is(database: Database) -> None:
    fill(database, *CAUSED)
    (found,) = json_lines(run(database, "status", "--json"))
    assert (found["head"]["ingressSequence"], found["head"]["commitId"]) == (5, 5)
    assert (found["identitiesEstimate"], found["salts"], found["keys"]) == (5, 1, {"active": 0, "revoked": 0})
    assert found["partitions"][0]["name"] == "events_0_1000000"
    assert found["readers"] == []
    assert "sequence 5 in commit 5" in run(database, "status").stdout


def test_keys_are_made_listed_and_revoked(database: Database) -> None:
    made = run(database, "keys", "create", "--tenant", "acme", "--scope", "read", "--scope", "ingest", "--label", "x")
    assert re.fullmatch(r"tdl_\S+\n", made.stdout)
    (key,) = json_lines(run(database, "keys", "list", "--json"))
    assert (key["tenantId"], key["scopes"], key["streams"], key["label"]) == ("acme", ["ingest", "read"], None, "x")
    assert made.stdout.strip() not in json.dumps(key)
    assert key["id"] in run(database, "keys", "list").stdout
    assert run(database, "keys", "revoke", key["id"]).exit_code == 0
    again = run(database, "keys", "revoke", key["id"])
    assert again.exit_code == 2
    assert "no active key" in again.stderr
    assert run(database, "keys", "create", "--tenant", "a", "--scope", "everything").exit_code == 2


def test_salts_are_added_promoted_and_shown_only_when_asked(database: Database) -> None:
    run(database, "salts", "add", "first")
    added = run(database, "salts", "add", "second")
    assert "tidelock salts promote 1" in added.stderr
    assert "second" not in added.stdout
    assert run(database, "salts", "promote", 1).exit_code == 0
    found = json_lines(run(database, "salts", "list", "--reveal", "--json"))
    assert [(each["position"], each["derives"], each["salt"]) for each in found] == [
        (0, True, "second"), (1, False, "first"),
    ]  # fmt: skip
    assert "second" not in run(database, "salts", "list").stdout
    assert run(database, "salts", "promote", 7).exit_code == 2


def test_verify_passes_an_untouched_ledger_and_names_the_first_difference_of_another(database: Database) -> None:
    fill(database, *CAUSED)
    (found,) = json_lines(run(database, "verify", "--json"))
    assert found["ok"] is True
    assert {tuple(check) for check in found["checks"]} == {("name", "ok", "detail")}
    with database.connect_sync() as connection:
        connection.execute(b"SET session_replication_role = replica")
        connection.execute(b"UPDATE events SET customer_ref = 'x' WHERE ingress_sequence = 3")
    changed = run(database, "verify", "--json")
    assert changed.exit_code == 1
    checks = {check["name"]: check["ok"] for check in json.loads(changed.stdout)["checks"]}
    assert checks == {
        "chain": False, "density": True, "order": True, "content": False, "identities": True, "corrections": True,
        "anchor": True,
    }  # fmt: skip
    assert "first difference: sequence 3: its columns do not match its content hash" in changed.stderr
    assert "DIFFERS" in run(database, "verify").stdout


def test_the_environment_and_the_file_name_the_database_too(database: Database, tmp_path: Path) -> None:
    assert run(None, "status", env={"DATABASE_URL": database.url}).exit_code == 0
    (tmp_path / "mine.toml").write_text(f"database_url = {json.dumps(database.url)}\n")
    assert run(None, "status", "--config", "mine.toml").exit_code == 0


def test_a_closed_pipe_is_no_error_worth_words(database: Database, tmp_path: Path) -> None:
    fill(database, *({"data": "x" * 9000} for _ in range(60)))
    running = process("export", "--database-url", database.url, cwd=tmp_path)
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline()
    running.stdout.close()
    assert running.stderr.read() == ""
    assert running.wait(30) == 128 + signal.SIGPIPE
    running.stderr.close()


def test_tail_follows_until_it_is_interrupted(database: Database, tmp_path: Path) -> None:
    fill(database, {"customerRef": "before"})
    running = process("tail", "-f", "--json", "--database-url", database.url, cwd=tmp_path)
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["customerRef"] == "before"
    fill(database, {"customerRef": "after"})
    assert json.loads(running.stdout.readline())["customerRef"] == "after"
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert (running.returncode, said) == (130, "")


@contextmanager
def up(directory: Path, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own and its URL."""
    running = process("up", "--port", 0, *arguments, cwd=directory)
    try:
        assert running.stderr is not None
        text = ""
        while "at http://" not in text and (line := running.stderr.readline()):
            text += line
        found = re.search(r"at (http://\S+) ", text)
        assert found, text
        yield running, found[1]
    finally:
        running.kill()
        running.communicate()


def post(url: str, event: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/v1/events", json.dumps(event).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_up_serves_refuses_a_second_one_lets_others_read_and_stops_cleanly(tmp_path: Path) -> None:
    data = tmp_path / ".tidelock"
    with up(tmp_path) as (running, url):
        assert post(url, {"stream": "s", "customerRef": "c", "ts": DAY})["accepted"] == 1
        second = process("up", "--port", 0, cwd=tmp_path)
        _, said = second.communicate(timeout=60)
        assert second.returncode == 2
        assert f"process {running.pid} has locked it" in said
        assert [line["customerRef"] for line in json_lines(run(None, "tail", "--json"))] == ["c"]
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 0
        assert "Stopped" in said
    assert not (data / "postgres" / "postmaster.pid").exists()
    assert json.loads((data / "anchor.jsonl").read_text())["commitId"] == 1
    # Started for its own time, and stopped again.
    result = run(None, "verify", "--json")
    assert json.loads(result.stdout)["checks"][-1]["detail"].startswith("1 anchor, ")
    assert not (data / "postgres" / "postmaster.pid").exists()


def test_a_start_is_reported_to_programs_as_one_object_a_line(tmp_path: Path) -> None:
    running = process("up", "--port", 0, "--json", cwd=tmp_path)
    try:
        assert running.stdout is not None
        starting, ready = (json.loads(running.stdout.readline()) for _ in range(2))
        assert (starting["event"], starting["pid"]) == ("starting", running.pid)
        assert (ready["event"], ready["pid"], ready["keysNeeded"]) == ("ready", running.pid, False)
        assert post(ready["url"], {"stream": "s"})["accepted"] == 1
        running.send_signal(signal.SIGTERM)
        told, said = running.communicate(timeout=60)
        assert (running.returncode, said) == (0, "")
        *fold, stopped = map(json.loads, told.splitlines())
        assert stopped == {"event": "stopped", "pid": running.pid}
        assert {line["event"] for line in fold} <= {"fold"}
    finally:
        running.kill()
        running.communicate()


def test_bench_measures_a_scratch_ledger_where_and_as_asked(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'streams_open = false\nanchor = "kept.jsonl"\n[postgres]\nmax_wal_size = "1GB"\n'
    )
    measured = ["ingest", "--events", "8000", "--rounds", "1", "--config", "mine.toml", "--json"]
    elsewhere = {"DATABASE_URL": "postgresql://nowhere.invalid/x"}
    (figures,) = json_lines(CliRunner().invoke(bench, [*measured, "--data", "place"], env=elsewhere))
    assert figures["batchEventsPerSecond"] > 0
    assert list((tmp_path / "place").iterdir()) == []
    assert not (tmp_path / "kept.jsonl").exists()
    (tmp_path / "mine.toml").write_text('database_url = "postgresql://db.example/real"\n')
    refused = CliRunner().invoke(bench, measured)
    assert refused.exit_code == 2
    assert "scratch ledger only" in refused.stderr


def test_after_a_kill_the_next_start_finds_everything_acknowledged(tmp_path: Path) -> None:
    with up(tmp_path) as (running, url):
        assert post(url, {"stream": "s", "idempotencyKey": "k"})["accepted"] == 1
        running.kill()
        running.wait()
    with up(tmp_path) as (running, url):
        assert post(url, {"stream": "s", "idempotencyKey": "k"})["duplicates"] == 1
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    assert not (tmp_path / ".tidelock" / "postgres" / "postmaster.pid").exists()


def test_help_does_not_wait_for_what_it_does_not_need(tmp_path: Path) -> None:
    code = "import sys, tidelock.cli.main; print([m for m in ('psycopg', 'fastapi', 'pyarrow') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert found.stdout == "[]\n"


def test_an_import_of_a_file_in_order_loads_neither_server_nor_arrow(database: Database, tmp_path: Path) -> None:
    """They would take most of its time: one row is there in 1.5 s."""
    (tmp_path / "a.csv").write_text("stream,ts\ns,2026-01-01T00:00:00Z\ns,2026-01-02T00:00:00Z\n")
    code = "import sys, tidelock.cli.main as main\ntry: main.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    words = ["import", str(tmp_path / "a.csv"), "--database-url", database.url]
    answer = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "2 accepted" in answer.stdout
    assert {"fastapi", "graphql", "aiohttp", "numpy", "pyarrow", "pyspark"} & set(answer.stderr.split()) == set()
