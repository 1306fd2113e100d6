"""Replays of triggers whose changes are not kept any more: the ledger, folded anew, gives what was told."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.cli.commandline import json_lines, run
from tests.cli.test_triggers import TOML, evaluated
from tests.conftest import Databases
from tests.fold.folding import Folding
from tests.fold.redefine.definition_changes import (
    BASE,
    change,
    changed,
    control_events,
    fold_all,
    leftovers,
    lend,
    send,
)
from tests.law.ledgers import COMPUTED
from tests.law.packs import drawn
from tests.law.test_trigger_law import packed_for
from tests.law.timelines import timed_definitions, timed_ledgers
from tests.ledgers import write_ledger
from tests.model import Event
from tests.model.samples import recorded
from tests.model.triggers import transitions
from tests.triggers.folded import expected, hand_fold
from tests.triggers.histories import DEFINITIONS, history
from tidelock.changes.log import prune
from tidelock.changes.reader import pruned_through
from tidelock.columns import BIGINT
from tidelock.definitions import parse_definitions
from tidelock.errors import Unreachable
from tidelock.fold.redefine import refolding
from tidelock.fold.redefine.catalog import write_catalog_sql
from tidelock.fold.redefine.refolding import Refolding
from tidelock.model import CONTROL
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import tables_of
from tidelock.triggers.admin import replay
from tidelock.triggers.definition import Trigger, control_event
from tidelock.triggers.outbox import Transition
from tidelock.triggers.past import one_moment
from tidelock.triggers.replay import Replay, WholePast

RANGES = 30
TOLD_MIN = 10


def prune_all(database: Database) -> None:
    with database.connect_sync() as connection:
        assert prune(connection, 0)
        assert connection.execute("SELECT FROM changes").fetchone() is None


def forms(found: Sequence[Transition]) -> list[tuple[Any, ...]]:
    return [(t.event_id, t.tenant_id, t.key, t.event_type, t.source_timestamp, json.loads(t.data)) for t in found]


class Told:
    """What the model says that triggers told."""

    def __init__(self, events: Sequence[Event], toml: Any) -> None:
        self._every = transitions(events, toml, COMPUTED)
        self._times = {event.ingress_sequence: event.source_timestamp for event in events}
        self.names = sorted({t.trigger for t in self._every})
        self.sequences = sorted(self._times)

    def by(self, name: str, first: int, last: int) -> list[tuple[Any, ...]]:
        begin, end = self._times[first], self._times[last]
        return expected([t for t in self._every if t.trigger == name and begin <= t.source_timestamp <= end])


def refold(spark: Spark, folding: Refolding) -> bool:
    """In ranges of another size than the fold's."""
    return folding.fold(spark, range_events_max=150, stop=threading.Event(), progress=lambda done, end: None)


@pytest.mark.timeout(300)
def test_what_triggers_told_is_found_again(spark: Spark, databases: Databases, number: int) -> None:
    """Triggers with and without `unmatch` and `snapshot`, that come, change and go, over random ranges."""
    chance = Random(number)
    # Of random ones, the first in which something is told.
    drafts = iter(lambda: history(chance, 24), None)
    events = next(draft for draft in drafts if len(transitions(draft, DEFINITIONS)) >= TOLD_MIN)
    with databases() as database:
        with hand_fold(database, events, [event.ingress_sequence for event in events]) as fold:
            for end in fold.ends:
                fold.fold(end)
        prove(spark, database, Told(events, DEFINITIONS), _tables(events), chance=chance, which=f"LAW_SEED={number}")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_what_triggers_on_every_kind_of_table_told_is_found_again(
    spark: Spark, databases: Databases, number: int
) -> None:
    """Counters, windows, late rows and all others, in ledgers as those of the law."""
    chance = Random(number)
    for place, toml in enumerate(drawn(timed_definitions(), 30, number)[9::10]):
        packed = packed_for(toml, drawn(timed_ledgers(), 25, number + place), chance)
        with databases() as database:
            write_ledger(database, packed.events, packed.ends)
            with Folding(spark, database, toml) as folding:
                folding.store.execute(write_catalog_sql(1, parse_definitions(toml), folding.range_fold.tables.values()))
                folding.store.commit()
                folding.advance(packed.cut(lambda: True))
            told = Told(packed.events, toml)
            prove(
                spark, database, told, _tables(packed.events), chance=chance, which=f"LAW_SEED={number}, pack {place}"
            )


def prove(spark: Spark, database: Database, model: Told, tables: set[str], chance: Random, which: str) -> None:
    assert model.names, "the triggers are about something"
    prune_all(database)
    end = model.sequences[-1]
    with refolding.refolding(database, dict.fromkeys(tables, 0), end) as again:
        assert refold(spark, again)
        with database.connect_sync() as connection, one_moment(connection):
            refolding.read_refolded(connection)
            for name in model.names:
                for first, last in [(1, end), *(sorted(chance.sample(model.sequences, 2)) for _ in range(RANGES))]:
                    # Before it was made there is no trigger of that name.
                    if wanted := model.by(name, first, last):
                        told = Replay(connection, name, first, last).transitions(connection, WholePast(connection))
                        assert forms(list(told)) == wanted, f"{which}, {name}, {first} to {last}"
    # By the way that the command goes, for the definitions of one trigger's tables, and through its range.
    name, last = model.names[0], chance.choice(model.sequences[: len(model.sequences) // 3])
    if wanted := model.by(name, 1, last):
        found_again = list(replay(database, name, 1, last, lambda again: refold(spark, again)))
        assert forms(found_again) == wanted, f"{which}, {name} to {last}"
    assert leftovers(database) == []


def _tables(events: Sequence[Event]) -> set[str]:
    said = [json.loads(event.data or "{}") for event in events if event.stream == CONTROL]
    return {data["table"] for data in said if data["type"] == "trigger" and data["action"] == "set"}


def test_the_command_folds_again_what_is_not_kept(
    spark: Spark, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lend(spark, monkeypatch)
    events = evaluated(database)
    prune_all(database)
    words = ("triggers", "replay", "big", "--data", tmp_path, "--from")
    result = run(database, *words, 1, "--to", len(events), "--dry-run", "--json")
    bodies = json_lines(result)
    assert "folding the ledger again" in result.stderr
    wanted = transitions(events, TOML)
    assert len(wanted) >= 4
    found = [(body["event_id"], body["event_type"], int(body["source_timestamp"]), body["data"]) for body in bodies]
    assert found == [(each.event_id, each.event_type, each.source_timestamp, each.data) for each in wanted]
    with database.connect_sync() as connection:
        connection.execute("DELETE FROM outbox")
    sent = run(database, *words, 1, "--to", len(events))
    assert f"{len(wanted)} queued" in sent.stderr
    assert leftovers(database) == ["triggers"]


THINGS = Trigger("things", "default", "things", "{}", unmatch=None, webhook="https://example.com/")
TYPED = Trigger("typed", "default", "typed", '{"n": {"_gte": 1}}', unmatch=None, webhook="https://example.com/")
LEAVING = replace(TYPED, name="leaving", unmatch='{"n": {"_lt": 0}}')


def made(trigger: Trigger) -> Mapping[str, Any]:
    tables = tables_of(parse_definitions(BASE), {"typed": {"twice": BIGINT}})
    whole = replace(trigger, columns=tables[trigger.table].columns)
    return {"stream": CONTROL, "tenant_id": CONTROL, "data": control_event(whole)}


def test_what_other_definitions_have_made_is_not_told(spark: Spark, database: Database) -> None:
    """The rows of a table whose definition was changed were others before that, those of other tables were not."""
    events = recorded(
        *([made(trigger)] for trigger in (THINGS, TYPED, LEAVING)),
        [{"stream": "things", "resource_id": "r"}, {"stream": "typed", "data": {"n": 1, "region": "eu"}}],
    )
    write_ledger(database, events)
    fold_all(spark, database, BASE)
    toml = changed(streams__typed={"calculated": {"twice": "n + 1"}})
    change(spark, database, toml)
    send(database, {"stream": "typed", "data": {"n": 2, "region": "eu"}})
    fold_all(spark, database, toml)
    assert json.loads(control_events(database)[-1].data or "")["changed"] == ["streams.typed"]
    prune_all(database)
    at, end = len(events) + 1, len(events) + 2

    def again(name: str, first: int, last: int) -> list[tuple[Any, ...]]:
        return [found[2:] for found in forms(list(replay(database, name, first, last, lambda it: refold(spark, it))))]

    assert [found[:2] for found in again("things", 1, end)] == [("r", "MATCH")]
    for name, first, last in (("typed", 1, end), ("typed", 1, at - 1), ("typed", at, end), ("leaving", end, end)):
        with pytest.raises(Unreachable, match=f"definitions were changed at sequence {at}:"):
            again(name, first, last)
    (only,) = again("typed", end, end)
    assert (only[:2], only[3]) == (("2", "MATCH"), {"n": 2, "region": "eu", "twice": 3})


def test_one_at_a_time_folds_again_and_one_that_is_stopped_leaves_nothing(spark: Spark, database: Database) -> None:
    events = evaluated(database)
    prune_all(database)
    assert list(replay(database, "big", 1, len(events), lambda _: False)) == []
    stop = threading.Event()
    stop.set()
    with refolding.refolding(database, {"trades": 0}, len(events)) as again:
        assert not again.fold(spark, range_events_max=50, stop=stop, progress=lambda done, end: None)
    assert leftovers(database) == ["triggers"]
    with database.connect_sync() as connection:
        assert pruned_through(connection) > 0
        assert leases.hold(connection, refolding._LEASE)
        with pytest.raises(Unreachable, match="another replay"):
            list(replay(database, "big", 1, len(events), lambda _: True))
