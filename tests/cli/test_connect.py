"""`tidelock connect materialize` as a command: what it refuses and how, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import events, process, run
from tests.sources.materialize import StandIn, standing_in
from tidelock.ledger.verify import verify
from tidelock.postgres.database import Database

TRADES = {"trade_id": "bigint", "symbol": "text", "price": "numeric", "at": "timestamp with time zone"}
CONFIG = """
[streams.trades]
key = "trade_id"
columns = { trade_id = "bigint", symbol = "string", price = "decimal(18,4)", at = "timestamp" }
[connect]
pause_max = "200ms"
patience = "5s"
"""


@pytest.fixture
def materialize() -> Iterator[StandIn]:
    with standing_in() as server:
        server.create("trades", TRADES, "trade_id")
        server.commit("trades", *(trade(number) for number in range(3)))
        yield server


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tidelock.toml"
    path.write_text(CONFIG)
    return path


def trade(number: int, symbol: str = "A") -> dict[str, Any]:
    return {"trade_id": number, "symbol": symbol, "price": "1.50", "at": "2026-01-31 10:00:00+00"}


def refusal(database: Database | None, *arguments: object, exit_code: int = 2) -> str:
    result = run(database, "connect", "materialize", *arguments)
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def started(server: StandIn, database: Database, tmp_path: Path, *more: object) -> subprocess.Popen[str]:
    given = ("--from", server.url(), "--view", "trades", "--database-url", database.url, *more)
    return process("connect", "materialize", *given, cwd=tmp_path)


def has_recorded(database: Database, count: int) -> bool:
    return head(database) >= count


def head(database: Database) -> int:
    with database.connect_sync() as connection:
        return int(connection.execute("SELECT ingress_sequence FROM ledger_head").fetchall()[0][0])


def until(true: Callable[[], object], connector: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert connector.poll() is None, connector.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def recorded(database: Database) -> list[tuple[Any, ...]]:
    return events(database, "row_key, op, data::text, occurred_at / 1000000")


def test_it_follows_ends_with_a_signal_and_continues(database: Database, materialize: StandIn, tmp_path: Path) -> None:
    snapshot = materialize.now
    connector = started(materialize, database, tmp_path, "--json")
    until(lambda: len(recorded(database)) == 3, connector)
    changed = materialize.commit("trades", trade(1, "B"), delete=[(2,)])
    materialize.advance()
    until(lambda: len(recorded(database)) == 5, connector)
    connector.send_signal(signal.SIGINT)
    out, said = connector.communicate(timeout=30)
    assert connector.returncode == 0, said
    assert "Traceback" not in said
    found = json.loads(out)
    assert (found["accepted"], found["deletes"], found["duplicates"], found["snapshots"]) == (5, 1, 0, 1)
    assert "following trades at 127.0.0.1" in said
    assert "changes recorded" in said
    assert "secret" not in said + out
    rows = recorded(database)
    assert json.loads(rows[0][2]) == {"trade_id": 0, "at": "2026-01-31T10:00:00Z", "price": "1.50", "symbol": "A"}
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("0", "upsert", snapshot), ("1", "upsert", snapshot), ("2", "upsert", snapshot),
        ("1", "upsert", changed), ("2", "delete", changed),
    ]  # fmt: skip
    materialize.commit("trades", trade(7))
    materialize.advance()
    again = started(materialize, database, tmp_path)
    until(lambda: len(recorded(database)) == 6, again)
    again.terminate()
    out, said = again.communicate(timeout=30)
    assert again.returncode == 0, said
    assert re.search(r"into stream \"trades\", after [0-9]+ \(20", said), said
    assert "1 change recorded, 0 deletes among them" in out
    assert verify(database, Path("none"), lambda *_: None).report.ok


#: more than one collection
ROWS = 2_500


def test_one_that_is_killed_has_lost_and_doubled_nothing(
    database: Database, materialize: StandIn, tmp_path: Path
) -> None:
    materialize.commit("trades", *(trade(number, "x") for number in range(ROWS)))
    for turn in range(2):
        connector = started(materialize, database, tmp_path)
        goal = len(recorded(database)) + 1
        until(partial(has_recorded, database, min(goal, ROWS)), connector)
        connector.kill()
        connector.wait()
        connector.communicate()
        materialize.commit("trades", trade(turn, "y"), delete=[(100 + turn,)])
        materialize.advance()
    connector = started(materialize, database, tmp_path)
    wanted = {str(key[0]): row["symbol"] for key, row in materialize.views["trades"].at(materialize.now).items()}
    # Looked at as a whole when anything has come: it is much.
    seen: list[int] = []

    def has_all() -> bool:
        if seen == (now := [head(database)]):
            return False
        seen[:] = now
        return latest(database) == wanted

    until(has_all, connector)
    connector.send_signal(signal.SIGINT)
    assert connector.wait(30) == 0
    connector.communicate()
    said = [(row[0], row[2]) for row in recorded(database) if row[1] == "upsert"]
    assert len(said) == len(set(said)), "none is doubled"
    deletes = [row[0] for row in recorded(database) if row[1] == "delete"]
    assert sorted(deletes) == ["100", "101"]


def latest(database: Database) -> dict[str, str]:
    found = {row[0]: row for row in recorded(database)}
    return {key: json.loads(row[2])["symbol"] for key, row in found.items() if row[1] == "upsert"}


def test_wrong_credentials_are_reported_without_the_password(database: Database, materialize: StandIn) -> None:
    said = refusal(database, "--from", materialize.url(password="wr0ng"), "--view", "trades")
    assert "rejects this login; check user, password and database" in said
    assert "wr0ng" not in said
    assert events(database) == []


def test_a_server_that_is_not_there_is_reported(database: Database, materialize: StandIn) -> None:
    url = materialize.url()
    materialize.stop()
    said = refusal(database, "--from", url, "--view", "trades", exit_code=3)
    assert "cannot be reached" in said
    assert "secret" not in said


def test_a_view_that_is_not_there_is_reported_with_what_could_be_meant(
    database: Database, materialize: StandIn
) -> None:
    said = refusal(database, "--from", materialize.url(), "--view", "tradez", "--stream", "trades")
    assert "has no tradez: unknown catalog item 'tradez'; did you mean trades?" in said


def test_a_user_without_rights_is_shown_which(database: Database, materialize: StandIn) -> None:
    materialize.forbidden.add("trades")
    said = refusal(database, "--from", materialize.url(), "--view", "trades")
    assert "permission denied" in said
    assert "grant this user SELECT on trades" in said


def test_a_stream_that_is_not_declared_is_refused_with_its_declaration(
    database: Database, materialize: StandIn, config: Path
) -> None:
    config.write_text("")
    arguments = ("--from", materialize.url(), "--view", "trades", "--key", "trade_id")
    result = run(database, "connect", "materialize", *arguments)
    assert result.exit_code == 2
    declared = result.stderr[result.stderr.index("[streams.trades]") :]
    assert 'key = "trade_id"' in declared
    # What it proposes is taken.
    config.write_text(declared)
    wrong = refusal(database, *arguments[:-1], "symbol")
    assert '--key symbol is not the key of stream "trades", which is trade_id' in wrong


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('symbol = "string"', 'symbol = "int"', 'column "symbol" is text in the view and int in the stream'),
        ('symbol = "string"', 'simbol = "string"', 'no column "simbol"; did you mean "symbol"?'),
        ('key = "trade_id"\n', "", 'stream "trades" needs a key and columns'),
    ],
)
def test_a_stream_that_does_not_fit_is_shown_what_to_change(
    database: Database, materialize: StandIn, config: Path, old: str, new: str, told: str
) -> None:
    config.write_text(CONFIG.replace(old, new))
    assert told in refusal(database, "--from", materialize.url(), "--view", "trades")
    assert events(database) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--view", "trades"], "--from URL is missing"),
        (["--from", "postgresql://x"], "--view NAME is missing"),
        (["--from", "", "--view", "trades"], "must not be empty"),
        (["--from", "::nonsense::", "--view", "trades"], "--from is not a URL of a Materialize"),
        (["--from", "postgresql://x", "--view", "a..b"], "not a valid view name"),
    ],
)
def test_wrong_use_is_reported(database: Database, arguments: list[str], told: str) -> None:
    assert told in refusal(database, *arguments)


def test_a_key_violation_ends_it_and_what_comes_after_it_is_made_up_for(
    database: Database, materialize: StandIn, tmp_path: Path
) -> None:
    connector = started(materialize, database, tmp_path)
    until(lambda: len(recorded(database)) == 3, connector)
    materialize.commit("trades", violate=[(1,)])
    materialize.advance()
    _, said = connector.communicate(timeout=30)
    assert connector.returncode == 2
    assert "several rows of the key trade_id = 1" in said
    assert "Traceback" not in said
    materialize.commit("trades", trade(1, "fixed"))
    materialize.advance()
    again = started(materialize, database, tmp_path)
    until(lambda: latest(database)["1"] == "fixed", again)
    again.terminate()
    again.communicate(timeout=30)
    assert len(recorded(database)) == 4
