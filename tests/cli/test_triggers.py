"""`tidelock triggers`: what it makes, shows and refuses, and what it finds again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import json_lines, run
from tests.model import Event
from tests.model.triggers import transitions
from tests.triggers.folded import begin_evaluation, hand_fold, told
from tests.triggers.outboxes import create_trigger, fill, transition
from tests.triggers.receiver import Receiver, receiving
from tidelock.columns import parse_column_type
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.triggers.definition import Trigger, control_event
from tidelock.triggers.evaluate import Evaluation
from tidelock.triggers.signatures import verify

Json = dict[str, Any]

COLUMNS = {"trade_id": "bigint", "qty": "int"}
TOML = {"streams": {"trades": {"key": "trade_id", "columns": COLUMNS}}}
SECRET = "whsec_" + "c2VjcmV0" * 4
BIG = '{"qty": {"_gt": 10}}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tidelock.toml"
    path.write_text(
        'webhook_allow_private = true\n[streams.trades]\nkey = "trade_id"\n'
        'columns = { trade_id = "bigint", qty = "int" }\n'
    )
    return path


def create(
    database: Database, config: Path, name: str = "big", webhook: str = "https://example.com/", *more: str
) -> Json:
    words = ("triggers", "create", name, "--table", "trades", "--match", BIG, "--webhook", webhook, *more)
    (made,) = json_lines(run(database, *words, "--config", config, "--json"))
    return made


def test_a_trigger_is_made_shown_switched_and_ended(database: Database, config: Path) -> None:
    made = create(database, config)
    assert made["secrets"][0].startswith("whsec_")
    (listed,) = json_lines(run(database, "triggers", "list", "--json"))
    assert listed == {name: value for name, value in made.items() if name != "secrets"}
    assert "big" in run(database, "triggers", "list").stdout
    for word, enabled in (("disable", False), ("enable", True)):
        assert run(database, "triggers", word, "big", "--config", config).exit_code == 0
        assert json_lines(run(database, "triggers", "list", "--json"))[0]["enabled"] is enabled
    assert run(database, "triggers", "delete", "big").exit_code == 0
    assert json_lines(run(database, "triggers", "list", "--json")) == []
    with database.connect_sync() as connection:
        found = connection.execute("SELECT data->>'action' FROM events ORDER BY ingress_sequence").fetchall()
    assert [action for (action,) in found] == ["set", "set", "set", "delete"]


def test_wrong_use_is_reported(database: Database, config: Path) -> None:
    create(database, config)
    words = ["--table", "trades", "--webhook", "https://example.com/", "--config", config]
    for name, match, told_ in (("big", BIG, "already"), ("new", "{", "JSON"), ("new", '{"x": {}}', "no column")):
        result = run(database, "triggers", "create", name, "--match", match, *words)
        assert (result.exit_code, told_ in result.stderr) == (2, True), result.output
    assert run(database, "triggers", "delete", "nobody").exit_code == 2
    assert run(database, "triggers", "deliveries", "big", "--status", "lost").exit_code == 2
    assert run(database, "triggers", "attempts", "big", "0" * 32).exit_code == 2
    assert run(database, "triggers", "replay", "big", "--from", 5, "--to", 1).exit_code == 2


@contextmanager
def receiving_aside() -> Iterator[Receiver]:
    """A receiver on a thread of its own, for commands that block."""
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as executor:
        loop, ready, stop = runner.get_loop(), Future[Receiver](), asyncio.Event()

        async def serve() -> None:
            async with receiving() as receiver:
                ready.set_result(receiver)
                await stop.wait()

        serving = executor.submit(runner.run, serve())
        try:
            yield ready.result(10)
        finally:
            loop.call_soon_threadsafe(stop.set)
            serving.result(10)


def test_the_attempts_of_a_webhook_are_shown(database: Database) -> None:
    one = transition((create_trigger(database, "big", "https://example.com/"), "big"), "7", 1)
    fill(database, [one])
    with database.connect_sync() as connection:
        connection.execute(
            "INSERT INTO delivery_attempts SELECT id, 1, now(), 0.25, 'failed', 503, 'later' FROM outbox"
        )
    (found,) = json_lines(run(database, "triggers", "attempts", "big", one.event_id, "--json"))
    assert (found["number"], found["outcome"], found["httpStatus"], found["response"]) == (1, "failed", 503, "later")
    assert "later" in run(database, "triggers", "attempts", "big", one.event_id).stdout


def _tenant(stream: str) -> str:
    return CONTROL if stream == CONTROL else "default"


def evaluated(database: Database) -> list[Event]:
    """A trigger with `unmatch`, whose rows come and go."""
    columns = {name: parse_column_type(text) for name, text in COLUMNS.items()}
    trigger = Trigger(
        "big", "default", "trades", BIG, unmatch='{"qty": {"_lt": 5}}', webhook="https://example.com/", columns=columns
    )
    drafts = [(CONTROL, control_event(trigger))]
    drafts += [("trades", {"trade_id": n % 3, "qty": qty}) for n, qty in enumerate([11, 7, 12, 6, 1, 4, 30, 2, 20])]
    events = [
        Event(number, number * 100, stream, 0, data=json.dumps(data), tenant_id=_tenant(stream))
        for number, (stream, data) in enumerate(drafts, start=1)
    ]
    begin_evaluation(database)
    with hand_fold(database, events, [event.ingress_sequence for event in events], TOML) as fold:
        for end in fold.ends:
            fold.fold(end)
    with database.connect_sync() as connection:
        reading = Evaluation(connection, database.connect_sync)
        while reading.step():
            pass
    return events


def test_a_replay_finds_the_same_ids_and_bodies_and_a_dry_one_sends_nothing(database: Database) -> None:
    events = evaluated(database)
    wanted: list[Json] = [
        {
            "event_id": each.event_id, "event_type": each.event_type, "trigger_name": "big",
            "source_timestamp": str(each.source_timestamp), "data": each.data,
        }
        for each in transitions(events, TOML)
    ]  # fmt: skip
    assert len(wanted) >= 4
    words = ("triggers", "replay", "big", "--from", 1, "--to", len(events), "--dry-run", "--json")
    found = json_lines(run(database, *words))
    assert [{name: value for name, value in body.items() if name != "timestamp"} for body in found] == wanted
    later = json_lines(run(database, "triggers", "replay", "big", "--from", 6, "--to", 8, "--dry-run", "--json"))
    assert [body["event_id"] for body in later] == [
        body["event_id"] for body in wanted if 600 <= int(body["source_timestamp"]) <= 800
    ]
    assert len(told(database)) == len(wanted), "a dry one queues nothing"
    with database.connect_sync() as connection:
        connection.execute("UPDATE outbox SET status = 'delivered', settled_at = now()")
        connection.execute("DELETE FROM outbox WHERE source_timestamp < 400")
    assert run(database, "triggers", "replay", "big", "--from", 1, "--to", len(events)).exit_code == 0
    with database.connect_sync() as connection:
        pending = connection.execute(
            "SELECT event_id FROM outbox WHERE status = 'pending' ORDER BY position"
        ).fetchall()
    assert [found_id for (found_id,) in pending] == [body["event_id"] for body in wanted]


def test_a_trigger_that_never_was_has_no_replay(database: Database) -> None:
    evaluated(database)
    assert run(database, "triggers", "replay", "nobody", "--from", 1, "--to", 5, "--dry-run").exit_code == 2


def test_a_sample_is_marked_signed_and_its_answer_shown(database: Database, config: Path) -> None:
    with receiving_aside() as receiver:
        create(database, config, "big", receiver.url, "--secret", SECRET)
        (sent,) = json_lines(run(database, "triggers", "test", "big", "--config", config, "--json"))
        assert (sent["outcome"], sent["httpStatus"]) == ("delivered", 200)
        (request,) = receiver.requests
        body = verify(request.body, request.headers, SECRET)
        assert (body["event_type"], body["event_id"], body["trigger_name"]) == ("TEST", sent["eventId"], "big")
        assert body["data"] == {"trade_id": None, "qty": None}
    assert run(database, "triggers", "test", "big", "--config", config).exit_code == 3
