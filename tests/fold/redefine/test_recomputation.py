"""Recomputation: tables folded anew equal those stored, and every value that does not is found."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import run
from tests.fold.redefine.definition_changes import catalog, change, changed, fold_all, ledger, leftovers, lend, send
from tidelock.errors import SettingsError, Unreachable
from tidelock.fold.redefine import recomputation
from tidelock.fold.redefine.recomputation import CHECK, Mismatch, Recomputation
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import Table


def recompute(spark: Spark, database: Database, *names: str, stop: threading.Event | None = None) -> Any:
    return recomputation.recompute(
        spark, database, names, range_events_max=1000, stop=stop or threading.Event(), progress=lambda done, end: None
    )


def places(found: Recomputation) -> set[tuple[str, str | None]]:
    return {(finding.table, finding.column) for finding in found.differences}


def test_what_was_folded_recomputes_to_the_same(spark: Spark, folded: Database) -> None:
    # Whatever a process that was killed has left behind is no hindrance.
    with folded.connect_sync() as connection:
        connection.execute(f"CREATE SCHEMA {CHECK.schema} CREATE TABLE counters (n int)".encode())
        connection.execute("INSERT INTO cursors (name, sequence) VALUES (%s, 7)", (f"{CHECK.cursors}x",))
    found = recompute(spark, folded)
    assert found.ok
    assert found.through_sequence == len(ledger())
    with folded.connect_sync() as connection:
        tables = ("counters", "counter_groups", "adjustments", "error_rows", "things", "typed")
        counted = [connection.execute(f"SELECT count(*) FROM tidelock_tables.{name}".encode()) for name in tables]
        rows = [row[0] for cursor in counted if (row := cursor.fetchone()) is not None]
    assert found.rows == sum(rows)
    assert all(rows), "each table is tried"
    assert leftovers(folded) == []


def test_every_changed_missing_and_added_row_is_found(spark: Spark, folded: Database) -> None:
    tables = {
        "counters": ("value", "adj_count"),
        "counter_groups": ("agg_max", "adj_last_at"),
        "adjustments": ("amount",),
        "error_rows": ("message",),
        "things": ("quantity",),
        "typed": ("twice",),
    }
    expected: set[tuple[str, str | None]] = set()
    with folded.connect_sync() as connection:
        for table, columns in tables.items():
            place = f"tidelock_tables.{table}"
            one = f'WHERE (tenant_id, "$key") = (SELECT tenant_id, "$key" FROM {place} ORDER BY 1, 2 DESC LIMIT 1)'
            # An extra row for every table, and its own row changed.
            connection.execute(f"CREATE TEMPORARY TABLE copied AS SELECT * FROM {place} {one}".encode())
            connection.execute("""UPDATE copied SET tenant_id = 'nobody'""")
            connection.execute(f"INSERT INTO {place} SELECT * FROM copied".encode())
            connection.execute("DROP TABLE copied")
            for column in columns:
                text = column == "message"
                value = "'else'" if text else f"coalesce({column}, 0) + 1"
                connection.execute(f"UPDATE {place} SET {column} = {value} {one} AND tenant_id <> 'nobody'".encode())
                expected.add((table, column))
            expected.add((table, None))
    found = recompute(spark, folded)
    assert not found.ok
    assert places(found) == expected
    extra = [finding for finding in found.differences if finding.column is None]
    assert {finding.tenant_id for finding in extra} == {"nobody"}
    assert all(finding.recomputed is None and finding.stored is not None for finding in extra)
    assert "the ledger gives no such row" in str(extra[0])

    with folded.connect_sync() as connection:
        for table in tables:
            connection.execute(f"DELETE FROM tidelock_tables.{table}".encode())
    found = recompute(spark, folded)
    assert found.differing == found.rows > 0
    assert places(found) == {(table, None) for table in tables}
    assert all(finding.stored is None for finding in found.differences)

    # Only what is named is looked at.
    found = recompute(spark, folded, "things")
    assert places(found) == {("things", None)}
    with pytest.raises(SettingsError, match="no definition"):
        recompute(spark, folded, "nothing")


def test_tables_are_checked_by_the_current_definitions_while_the_fold_continues(spark: Spark, folded: Database) -> None:
    """The definitions change between the first look and the comparison."""
    toml = changed(meters__calls={"period": "hour"}, streams__typed={"key": "region"})
    begun = threading.Event()

    def progress(done: int, end: int) -> None:
        if not begun.is_set():
            begun.set()
            change(spark, folded, toml)
            send(folded, {"stream": "calls", "customerRef": "c", "quantity": 5, "ts": "2026-03-10T14:00:00Z"})
            fold_all(spark, folded, toml)

    found = recomputation.recompute(
        spark, folded, range_events_max=1000, stop=threading.Event(), progress=progress
    )  # fmt: skip
    assert found is not None
    assert found.ok, found.differences
    assert found.through_sequence == len(ledger()) + 2
    assert leftovers(folded) == []


def test_a_swap_in_the_middle_of_the_comparison_restarts_it(
    spark: Spark, folded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = changed(streams__things=None)
    compare = recomputation._compare

    def slow(connection: Any, table: Table, scope: str) -> Any:
        if table.name == "counter_groups" and "things" in catalog(folded).tables:
            change(spark, folded, toml)
        return compare(connection, table, scope)

    monkeypatch.setattr(recomputation, "_compare", slow)
    found = recompute(spark, folded)
    assert found.ok, found.differences
    assert found.through_sequence == len(ledger()) + 1


def test_one_that_is_stopped_leaves_nothing_behind(spark: Spark, folded: Database) -> None:
    stop = threading.Event()
    stop.set()
    assert recompute(spark, folded, stop=stop) is None

    def fail(done: int, end: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recomputation.recompute(spark, folded, range_events_max=1000, stop=threading.Event(), progress=fail)
    assert leftovers(folded) == []


def test_one_at_a_time_recomputes(spark: Spark, database: Database) -> None:
    with database.connect_sync() as connection:
        assert leases.hold(connection, recomputation._LEASE)
        with pytest.raises(Unreachable, match="another recomputation"):
            recompute(spark, database)
    with pytest.raises(SettingsError, match="nothing has been folded yet"):
        recompute(spark, database)


def test_the_command_and_verify_tell_what_differs(
    spark: Spark, folded: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lend(spark, monkeypatch)
    data = ("--data", tmp_path)
    equal = run(folded, "recompute", "--check", *data)
    assert equal.exit_code == 0, equal.output
    assert "equal" in equal.stdout
    with folded.connect_sync() as connection:
        connection.execute("UPDATE tidelock_tables.counters SET agg_sum = agg_sum + 1 WHERE metric = 'typed_max'")
    differs = run(folded, "recompute", "typed_max", *data)
    assert differs.exit_code == 1, differs.output
    assert "agg_sum" in differs.stdout
    assert "tidelock replay typed_max" in differs.stderr
    machine = run(folded, "recompute", "--json", *data)
    assert machine.exit_code == 1
    told = json.loads(machine.stdout)
    assert not told["ok"]
    assert [(d["table"], d["column"]) for d in told["differences"]] == [("counters", "agg_sum")]
    assert run(folded, "recompute", "nothing", *data).exit_code == 2

    checks = json.loads(run(folded, "verify", "--json", *data).stdout)["checks"]
    assert [(check["name"], check["ok"]) for check in checks][-1] == ("tables", False)
    assert "agg_sum" in checks[-1]["detail"]
    checks = json.loads(run(folded, "verify", "--json", "--no-tables", *data).stdout)["checks"]
    assert "tables" not in [check["name"] for check in checks]


def test_a_finding_says_what_is_wrong() -> None:
    changed_cell = Mismatch("counters", "t", '["m"]', "value", stored="1", recomputed=None)
    assert str(changed_cell) == 'counters, tenant t, key ["m"]: value is 1, the ledger gives null'
    missing = Mismatch("counters", "t", '["m"]', None, stored=None, recomputed="{}")
    assert str(missing) == 'counters, tenant t, key ["m"]: the row is missing, the ledger gives {}'
