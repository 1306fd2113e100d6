"""Changed definitions: made anew beside the tables, swapped at an event, with the difference as changes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import run
from tests.fold.folding import differences
from tests.fold.redefine.definition_changes import (
    BASE,
    FORMULAS,
    catalog,
    change,
    changed,
    control,
    control_events,
    fold_all,
    ledger,
    leftovers,
    lend,
    modelled,
    picture,
    runner,
    send,
)
from tests.ledgers import write_ledger
from tidelock.definitions import parse_definitions
from tidelock.errors import SettingsError
from tidelock.fold import runner as runner_module
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.redefine import replay as replaying
from tidelock.fold.redefine.proposals import definition_event
from tidelock.fold.redefine.shadow import Plan, Shadow, ShadowGone
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark


def check(database: Database, first: Any = BASE) -> None:
    found = differences(picture(database), modelled(database, first, FORMULAS))
    assert found == {}, "\n".join(found.values())


def test_every_change_of_definitions_gives_the_tables_of_the_new_ones_and_the_difference_as_changes(
    spark: Spark, folded: Database
) -> None:
    check(folded)
    toml, columns = BASE, BASE["streams"]["typed"]["columns"]
    steps: list[tuple[str, dict[str, Any]]] = [
        ("a changed meter, and an added column", {
            "meters__calls": {"lateness": "6h", "aggregation": "avg"},
            "streams__typed": {"columns": columns | {"price": "decimal(9,2)"}},
        }),
        ("a new meter on a stream, and a changed key", {
            "meters__things_count": {"stream": "things", "aggregation": "count"},
            "streams__typed": {"key": "region"},
        }),
        ("a removed meter and a removed stream", {"meters__typed_max": None, "streams__things": None}),
        ("a changed calculated column, and a new stream, not live", {
            "streams__typed": {"calculated": {"twice": "n + 1"}},
            "streams__things": {"key": "customer_ref", "live": False},
        }),
    ]  # fmt: skip
    for number, (what, paths) in enumerate(steps, start=1):
        send(folded, {"stream": "calls", "customerRef": "c", "quantity": number, "ts": "2026-03-10T14:00:00Z"},
             {"stream": "typed", "data": {"n": number}, "customerRef": "d"})  # fmt: skip
        toml = changed(toml, **paths)
        change(spark, folded, toml)
        assert len(control_events(folded)) == number, what
        check(folded)
        assert leftovers(folded) == []
    assert catalog(folded).version == 1 + len(steps)


def test_what_decides_no_row_is_recorded_but_rebuilds_nothing(spark: Spark, folded: Database) -> None:
    before = picture(folded)
    change(spark, folded, changed(meters__calls={"live": False}))
    assert not catalog(folded).definitions.meters["calls"].live
    assert len(control_events(folded)) == 1
    assert picture(folded) == before
    send(folded, {"stream": "calls", "customerRef": "c", "quantity": 5, "ts": "2026-03-10T14:00:00Z"})
    fold_all(spark, folded, changed(meters__calls={"live": False}))
    check(folded)


def test_a_fold_that_may_not_rebuild_refuses_and_names_what_to_do(spark: Spark, folded: Database) -> None:
    toml = changed(meters__calls={"period": "month"})
    with pytest.raises(SettingsError, match=r"meters\.calls changed .*`tidelock replay`"):
        runner(spark, folded, toml, rebuild=False).run(threading.Event())
    assert control_events(folded) == []


@pytest.mark.parametrize(
    ("columns", "named"),
    [({"n": "bigint"}, "region is missing"), ({"n": "int", "region": "string"}, "n is declared int")],
)
def test_columns_may_only_be_added(spark: Spark, folded: Database, columns: dict[str, str], named: str) -> None:
    toml = changed(streams__typed={"columns": columns, "calculated": {}})
    with pytest.raises(SettingsError, match=named) as raised:
        runner(spark, folded, toml).run(threading.Event())
    assert raised.value.field == f"streams.typed.columns.{named.split()[0]}"


def test_replay_builds_and_another_fold_swaps(spark: Spark, folded: Database) -> None:
    toml = changed(meters__calls={"period": "month"})
    plan = replaying.plan_replay(catalog(folded), parse_definitions(toml), [])
    assert plan.units == ("meters.calls",)
    sequence = replaying.build(
        spark, folded, plan, range_events_max=3, control=control(folded), stop=threading.Event(),
        progress=lambda done, end: None,
    )  # fmt: skip
    # Recorded after the event: folded by the new definitions only.
    send(folded, {"stream": "calls", "customerRef": "c", "quantity": 5, "ts": "2026-03-10T14:00:00Z"})
    assert sequence == len(ledger()) + 1
    fold_all(spark, folded, toml, rebuild=False)
    check(folded)


def test_replaying_a_definition_by_name_repairs_its_rows_and_tells_the_difference(
    spark: Spark, folded: Database
) -> None:
    wanted = picture(folded)
    with folded.connect_sync() as connection:
        connection.execute("UPDATE tidelock_tables.counters SET agg_sum = 7, adj_sum = 7 WHERE metric = 'calls'")
        connection.execute("DELETE FROM tidelock_tables.things")
    plan = replaying.plan_replay(catalog(folded), parse_definitions(BASE), ["calls", "streams.things"])
    assert plan.asked == plan.units == ("meters.calls", "streams.things")
    replaying.build(spark, folded, plan, range_events_max=100, control=control(folded), stop=threading.Event(),
                    progress=lambda done, end: None)  # fmt: skip
    fold_all(spark, folded, BASE, rebuild=False)
    found = picture(folded)
    assert {place: row for place, (_, row) in found.rows.items()} == {p: row for p, (_, row) in wanted.rows.items()}
    new = found.changes[len(wanted.changes) :]
    assert {table for _, (table, _, _), _, _ in new} == {"counters", "things"}
    assert {time for time, _, _, _ in new} == {control_events(folded)[0].source_timestamp}
    with pytest.raises(SettingsError, match=r'no definition "nothing"; available: meters\.calls'):
        replaying.plan_replay(catalog(folded), parse_definitions(BASE), ["nothing"])


class Crash(BaseException):
    """As if the process had ended here."""


def test_a_crash_between_ranges_or_before_the_swap_changes_nothing_in_the_end(
    spark: Spark, folded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = changed(meters__calls={"period": "month"}, streams__typed={"key": "region"})
    step = Shadow.step
    steps = 0

    def crashing_step(self: Shadow, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise Crash
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Shadow, "step", crashing_step)
        patch.setattr(runner_module, "SHADOW_LAG_EVENTS", 0)
        with pytest.raises(Crash):
            runner(spark, folded, toml, range_events_max=3).run(threading.Event())
    assert leftovers(folded) != []
    assert control_events(folded) == []

    def crashing_swap(*_: object) -> None:
        raise Crash

    send(folded, {"stream": "calls", "customerRef": "c", "quantity": 5, "ts": "2026-03-10T14:00:00Z"})
    with monkeypatch.context() as patch:
        patch.setattr(runner_module, "swap", crashing_swap)
        with pytest.raises(Crash):
            runner(spark, folded, toml).run(threading.Event())
    assert len(control_events(folded)) == 1
    send(folded, {"stream": "typed", "data": {"n": 8, "region": "us"}, "customerRef": "c"})
    # One that was started with the old definitions follows the event all the same.
    with pytest.raises(SettingsError, match="changed since"):
        fold_all(spark, folded, BASE, rebuild=False)
    fold_all(spark, folded, toml, rebuild=False)
    assert len(control_events(folded)) == 1
    check(folded)
    assert leftovers(folded) == []


def test_a_shadow_that_is_ahead_of_the_event_is_rebuilt(spark: Spark, folded: Database) -> None:
    toml = changed(meters__calls={"period": "month"})
    plan = replaying.plan_replay(catalog(folded), parse_definitions(toml), [])
    send(folded, {"stream": "calls", "customerRef": "c", "quantity": 5, "ts": "2026-03-10T14:00:00Z"})
    control(folded)(definition_event(plan))
    send(folded, {"stream": "calls", "customerRef": "c", "quantity": 6, "ts": "2026-03-10T14:00:00Z"})
    shadow = Shadow(spark, folded, plan)
    while shadow.step(100) is not None:
        pass
    shadow.close()
    fold_all(spark, folded, toml)
    check(folded)


def test_a_shadow_that_another_plan_has_replaced_is_given_up(spark: Spark, folded: Database) -> None:
    wanted = parse_definitions(changed(meters__calls={"period": "month"}))
    one = Shadow(spark, folded, Plan(wanted, ("meters.calls",)))
    one.step(3)
    same = Shadow(spark, folded, Plan(wanted, ("meters.calls",)))
    assert same.position == one.position == 3
    same.close()
    other = Shadow(spark, folded, Plan(wanted, ("streams.things",)))
    assert other.position == 0
    other.close()
    with pytest.raises(ShadowGone):
        one.look_again()
    one.close()


def test_a_shadow_that_was_begun_before_an_upgrade_of_the_tables_is_built_again(spark: Spark, folded: Database) -> None:
    plan = Plan(parse_definitions(changed(meters__calls={"period": "month"})), ("meters.calls",))
    for outdated in ('DROP TABLE "meters$distinct"', "ALTER TABLE counters DROP closed_last"):
        shadow = Shadow(spark, folded, plan)
        shadow.step(3)
        shadow.close()
        with folded.connect_sync() as connection:
            connection.execute("SET search_path = tidelock_shadow")
            connection.execute(outdated.encode())
        again = Shadow(spark, folded, plan)
        assert again.position == 0
        again.step(3)
        again.close()


def test_the_settings_of_a_fold_do_not_undo_what_was_decided_after_it_was_started(
    spark: Spark, folded: Database
) -> None:
    newer = changed(meters__calls={"period": "month"})
    plan = replaying.plan_replay(catalog(folded), parse_definitions(newer), [])
    told: list[str] = []
    stop = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if text.startswith("folding from") and len(told) == 1:
            control(folded)(definition_event(plan))
        if "another process changed" in text:
            stop.set()

    runner(spark, folded, BASE, tell=tell).run(stop)
    assert len(control_events(folded)) == 1
    check(folded)
    # Started again, its settings are a wish of now.
    change(spark, folded, BASE)
    assert len(control_events(folded)) == 2
    check(folded)


def test_what_was_decided_before_a_fold_was_started_comes_first(spark: Spark, folded: Database) -> None:
    plan = replaying.plan_replay(
        catalog(folded), parse_definitions(changed(meters__calls={"period": "month"})), []
    )  # fmt: skip
    control(folded)(definition_event(plan))
    wanted = changed(meters__calls={"period": "hour"})
    change(spark, folded, wanted, times=2)
    assert len(control_events(folded)) == 2
    assert catalog(folded).definitions.canonical() == parse_definitions(wanted).canonical()
    check(folded)


def test_an_empty_ledger_takes_any_definitions_without_an_event(spark: Spark, database: Database) -> None:
    first = {
        "streams": {"old": {"key": "resource_id"}, "typed": {"key": "n", "columns": {"n": "bigint"}}},
        "meters": {},
    }
    second = {"streams": {"typed": {"key": "n", "columns": {"n": "int", "m": "string"}}}, "meters": {}}
    for toml in (first, second, first):
        stop = threading.Event()

        def stopping(_: str, stop: threading.Event = stop) -> None:
            stop.set()

        runner(spark, database, toml, rebuild=False, tell=stopping).run(stop)
    assert control_events(database) == []
    send(database, {"stream": "old", "resourceId": "r"}, {"stream": "typed", "data": {"n": 10**12}})
    fold_all(spark, database, first, rebuild=False)
    check(database, first)


def test_first_definitions_that_nothing_can_be_folded_by_give_way_to_others(
    spark: Spark, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    runner(spark, database, BASE, tell=lambda _: stop.set()).run(stop)
    write_ledger(database, ledger())
    fold = RangeFold.apply

    def failing(self: RangeFold, lo: int, hi: int) -> int:
        if "things" in self.tables:
            raise RuntimeError("a defect")
        return fold(self, lo, hi)

    monkeypatch.setattr(RangeFold, "apply", failing)
    monkeypatch.setattr(runner_module.Runner, "pause_max_s", 0)
    with pytest.raises(RuntimeError, match="a defect"):
        fold_all(spark, database, BASE)
    others = changed(streams__things=None, meters__calls={"period": "month"})
    fold_all(spark, database, others)
    assert catalog(database).definitions.canonical() == parse_definitions(others).canonical()
    # The event that says so, written when the others were known to work, changes nothing any more.
    fold_all(spark, database, others)
    check(database, others)
    assert leftovers(database) == []


def test_readers_meanwhile_see_the_old_rows_or_the_new_ones(spark: Spark, folded: Database) -> None:
    seen: set[tuple[Any, ...]] = set()
    done = threading.Event()

    def read() -> None:
        query = """SELECT (SELECT array_agg(row(metric, n, total) ORDER BY metric)::text FROM (
                SELECT metric, count(*) AS n, sum(total) AS total FROM tidelock_tables.counters GROUP BY metric) AS m),
            (SELECT count(*) FROM tidelock_tables.typed), (SELECT count(*) FROM tidelock_tables.adjustments)"""
        with folded.connect_sync() as connection:
            while not done.is_set():
                with connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                    seen.add(tuple(connection.execute(query.encode()).fetchall()[0]))

    reader = threading.Thread(target=read)
    reader.start()
    columns = {"n": "bigint", "region": "string", "more": "string"}
    change(spark, folded, changed(meters__calls={"period": "hour", "lateness": "0s"}, meters__typed_max=None,
                                  streams__typed={"key": ["n", "region"], "columns": columns}))  # fmt: skip
    done.set()
    reader.join()
    assert len(seen) == 2, seen
    check(folded)


def test_a_long_transaction_delays_the_swap_and_nobody_who_reads(spark: Spark, folded: Database) -> None:
    told: list[str] = []
    with folded.connect_sync() as long, folded.connect_sync() as short:
        long.execute("BEGIN")
        long.execute("SELECT FROM tidelock_tables.typed")
        columns = BASE["streams"]["typed"]["columns"] | {"price": "decimal(9,2)"}
        toml = changed(streams__typed={"columns": columns})
        folding = threading.Thread(target=change, args=(spark, folded, toml), kwargs={"told": told})
        folding.start()
        while not any("is locked by" in text for text in told):
            # It would wait for ever behind a lock that waits for the long one.
            short.execute("SELECT FROM tidelock_tables.typed")
            assert folding.is_alive(), told
            time.sleep(0.01)
        long.rollback()
        folding.join(60)
    check(folded)


def test_the_commands_refuse_replay_and_tell(
    spark: Spark, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lend(spark, monkeypatch)
    write_ledger(database, ledger())
    file = tmp_path / "tidelock.toml"
    given = ("--config", file, "--data", tmp_path)
    file.write_text('[meters.calls]\nperiod = "day"\n')
    refused = run(database, "replay", *given)
    assert refused.exit_code == 2
    assert "nothing has been folded yet" in refused.stderr
    assert run(database, "fold", "--once", *given).exit_code == 0
    file.write_text('[meters.calls]\nperiod = "month"\n')
    refused = run(database, "fold", "--once", *given)
    assert refused.exit_code == 2
    assert "meters.calls changed" in refused.stderr
    replayed = run(database, "replay", *given)
    assert replayed.exit_code == 0, replayed.output
    assert "meters.calls: done" in replayed.stderr
    check(database, {"streams": {}, "meters": {"calls": {"period": "day"}}})
    assert "no definition has changed" in run(database, "replay", *given).stderr
    assert run(database, "replay", "calls", *given).exit_code == 0
    assert len(control_events(database)) == 2
    assert run(database, "replay", "nothing", *given).exit_code == 2
    check(database, {"streams": {}, "meters": {"calls": {"period": "day"}}})
