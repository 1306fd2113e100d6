"""Triggers are evaluated as the model says: whatever is read at a time, however often it begins anew."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from tests.conftest import Databases
from tests.model import Event
from tests.model.triggers import transitions
from tests.triggers.folded import HandFold, begin_evaluation, expected, hand_fold, told
from tests.triggers.histories import DEFINITIONS, history
from tests.triggers.readers import Reader
from tidelock.columns import parse_column_type
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.triggers import evaluate as evaluation
from tidelock.triggers.definition import Trigger, control_event
from tidelock.triggers.evaluate import Evaluation
from tidelock.triggers.outbox import Transition
from tidelock.triggers.past import one_moment
from tidelock.triggers.replay import KeptPast, Replay

pytestmark = pytest.mark.check

CASES = json.loads((Path(__file__).parent.parent / "cases" / "triggers.json").read_text())
LEDGERS = 2


@pytest.fixture(scope="module")
def number() -> int:
    usual = 7 if os.environ.get("CI") == "true" else random.randrange(10**6)
    found = int(os.environ.get("TRIGGERS_SEED", usual))
    print(f"TRIGGERS_SEED={found}")
    return found


@pytest.mark.timeout(300)
def test_transitions_are_those_of_the_model_however_they_are_read(
    databases: Databases, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(databases, number, monkeypatch, LEDGERS)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_transitions_of_very_many_ledgers_are_those_of_the_model(
    databases: Databases, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(databases, number + 1, monkeypatch, 100)


def prove(databases: Databases, number: int, monkeypatch: pytest.MonkeyPatch, ledgers: int) -> None:
    monkeypatch.setattr(evaluation, "_CHANGES", 3)
    monkeypatch.setattr(evaluation, "_CROSSINGS", 2)
    counted = 0
    for place in range(ledgers):
        chance = Random(number * 1_000 + place)
        events = history(chance, 60)
        wanted = expected(transitions(events, DEFINITIONS))
        counted += len(wanted)
        with databases() as database:
            run(database, events, chance, monkeypatch)
            assert told(database) == wanted, f"TRIGGERS_SEED={number}, ledger {place}"
            replay(database, events, chance)
    # Ten each by far, but any one seed may give a few less.
    assert counted > 2 * ledgers, "the histories are about something"


def replay(database: Database, events: list[Event], chance: Random) -> None:
    """What every trigger has told over some ranges comes out once more."""
    made = transitions(events, DEFINITIONS)
    times = {event.ingress_sequence: event.source_timestamp for event in events}
    with database.connect_sync() as connection, one_moment(connection):
        for name in {each.trigger for each in made}:
            for first, last in ((1, len(events)), sorted(chance.sample(sorted(times), 2))):
                wanted = [t for t in made if t.trigger == name and times[first] <= t.source_timestamp <= times[last]]
                found = [] if not wanted else replayed(connection, name, first, last)
                told_again = [
                    (t.event_id, t.tenant_id, t.key, t.event_type, t.source_timestamp, json.loads(t.data))
                    for t in found
                ]
                assert told_again == expected(wanted)


def replayed(connection: psycopg.Connection[Any], name: str, first: int, last: int) -> list[Transition]:
    found = Replay(connection, name, first, last)
    assert found.kept(connection)
    return list(found.transitions(connection, KeptPast(connection)))


def run(database: Database, events: list[Event], chance: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold in random ranges, and read behind the fold at random moments."""
    begin_evaluation(database)
    times = list(dict.fromkeys(event.source_timestamp for event in events))
    last = {event.source_timestamp: event.ingress_sequence for event in events}
    ends = [last[time] for time in times if chance.random() < 0.7]
    reader = Reader(database, chance, monkeypatch)
    with hand_fold(database, events, ends) as fold:
        for hi in ranges(fold, events, chance):
            fold.fold(hi)
            if chance.random() < 0.2:
                reader.read()
        reader.finish(fold.position)
    reader.close()


def ranges(fold: HandFold, events: list[Event], chance: Random) -> Iterator[int]:
    """Ends of ranges: some commits each, control events alone."""
    control = {event.ingress_sequence for event in events if event.stream == CONTROL}
    for place, end in enumerate(fold.ends):
        following = fold.ends[place + 1] if place + 1 < len(fold.ends) else None
        if following is None or end in control or following in control or chance.random() < 0.5:
            yield end


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_worked_cases(case: dict[str, Any], database: Database) -> None:
    """With the source timestamps that the cases name."""
    toml = {"streams": {"trades": {"key": "trade_id", "columns": {"trade_id": "bigint", "qty": "int"}}}}
    given = case["trigger"]
    unmatch = None if given["unmatch"] is None else json.dumps(given["unmatch"])
    columns = {name: parse_column_type(text) for name, text in toml["streams"]["trades"]["columns"].items()}  # type: ignore[attr-defined]
    trigger = Trigger(
        given["name"], "default", given["table"], json.dumps(given["match"]), unmatch=unmatch, webhook="https://x.example/",
        columns=columns,
    )  # fmt: skip
    made = (int(given["created_at"]), [(CONTROL, json.dumps(control_event(trigger)), "upsert")])
    rows = [
        (
            int(collection["source_timestamp"]),
            [
                (
                    "trades",
                    json.dumps(row["row"] or {"trade_id": row["trade_id"]}),
                    "upsert" if row["row"] else "delete",
                )
                for row in collection["rows"]
            ],
        )
        for collection in case["collections"]
    ]
    events: list[Event] = []
    for time, drafts in sorted([made, *rows]):
        for stream, data, op in drafts:
            tenant = CONTROL if stream == CONTROL else "default"
            events.append(Event(len(events) + 1, time, stream, time, tenant_id=tenant, data=data, op=op))
    ends = [event.ingress_sequence for event in events]
    begin_evaluation(database)
    with hand_fold(database, events, ends, toml) as fold:
        for end in fold.ends:
            fold.fold(end)
    with database.connect_sync() as connection:
        reading = Evaluation(connection, database.connect_sync)
        while reading.step():
            pass
    wanted = [
        (each["event_id"], "default", str(each["key"]), each["event_type"], int(each["source_timestamp"]), each["data"])
        for each in case["deliveries"]
    ]
    assert told(database) == wanted
    assert expected(transitions(events, toml)) == wanted, "the model says so too"


def test_one_that_evaluates_keeps_others_from_it(database: Database) -> None:
    begin_evaluation(database)
    with database.connect_sync() as first, database.connect_sync() as second:
        first.execute("INSERT INTO cursors (name, sequence) VALUES ('fold', 1)")
        second.execute("SET lock_timeout = '100ms'")
        with first.transaction():
            first.execute(evaluation.QUERIES["look"])
            with pytest.raises(psycopg.errors.LockNotAvailable):
                Evaluation(second, database.connect_sync).step()
