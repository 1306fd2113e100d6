"""The store's statements: Postgres goes through them as it should, whatever it believes of the tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidelock.definitions import parse_definitions
from tidelock.fold import statements, store
from tidelock.fold.kernel.outcomes import Outcome, appended, no_keys, row_schema
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.tables import COUNTERS, KEY, SCHEMA, ordered_table

pytestmark = pytest.mark.check

ROWS = 5_000


def counters(count: int = ROWS) -> pa.Table:
    """As many counters, of which nothing but the key matters."""
    keys = [f'["calls","{number}","2026-03-01T00:00:00Z"]' for number in range(count)]
    columns = {}
    for field in row_schema(COUNTERS):
        value: str | bool | int = "calls" if pa.types.is_string(field.type) else 1
        value = True if pa.types.is_boolean(field.type) else value
        columns[field.name] = pa.array(keys if field.name == KEY else [value] * count, field.type)
    return pa.table(columns)


@pytest.fixture
def filled(database: Database) -> Store:
    """Counters that were counted by Postgres when nobody but their writer could see them."""
    found = Store(database, SCHEMA, "fold")
    found.position()
    found.move(0, 1)
    found.write(1, [appended(COUNTERS, counters())], changes=False)
    with database.connect_sync() as other:
        other.execute(f"ANALYZE {statements.placed(SCHEMA, COUNTERS.name)}".encode())
    found.finish(1)
    return found


def rows_believed(database: Database) -> float:
    with database.connect_sync() as connection:
        row = connection.execute("SELECT reltuples FROM pg_class WHERE relname = 'counters'").fetchone()
    assert row is not None
    return float(row[0])


def test_stored_rows_are_looked_up_by_their_keys_even_where_postgres_believes_that_there_are_none(
    filled: Store, database: Database
) -> None:
    assert rows_believed(database) == 0
    few = statements.select_few(SCHEMA, COUNTERS, counters(10).select(["tenant_id", KEY]).to_pylist())
    with database.connect_sync() as connection:
        connection.execute(statements.CREATE_KEYS.encode())
        for sql in (statements.select_keys(SCHEMA, COUNTERS), few):
            plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {sql}".encode()))
            assert "Index Scan using counters_pkey on counters it" in plan
    assert filled.rows(COUNTERS, counters(1_000)).num_rows == 1_000
    # They are replaced in the same way where Postgres knows how many there are.
    with database.connect_sync(autocommit=False) as connection:
        connection.execute(f"ANALYZE {statements.placed(SCHEMA, COUNTERS.name)}".encode())
        connection.execute(statements.create_stage(SCHEMA, COUNTERS).encode())
        connection.execute(statements.along_index(True).encode())
        merged = connection.execute(f"EXPLAIN {statements.merge(SCHEMA, COUNTERS)}".encode())
        assert "Index Scan using counters_pkey" in "\n".join(line for (line,) in merged)
    filled.rollback()
    filled.close()


def test_rows_of_ordered_output_are_found_by_their_sequences(database: Database) -> None:
    definitions = {"streams": {"rows": {"eventtime": {"column": "occurred_at"}, "ordered": True}}}
    table = ordered_table(parse_definitions(definitions).streams["rows"])
    keys = pa.table({"tenant_id": ["a", "b", "a"], KEY: ["7", "8", "9"]})
    numbered = keys.append_column("ingress_sequence", keys[KEY].cast(pa.int64()))
    rows = pa.table(
        {
            field.name: numbered[field.name] if field.name in numbered.column_names else pa.array([1] * 3, pa.int64())
            for field in row_schema(table)
            if field.name in numbered.column_names or field.type == pa.int64()
        }
    )
    own = Store(database, SCHEMA, "fold")
    for statement in (statements.create_table(SCHEMA, table), *statements.create_indexes(SCHEMA, table)):
        own.execute(statement)
    own.position()
    own._ingest(table.name, rows, SCHEMA)
    own.commit()
    with database.connect_sync() as connection:
        connection.execute(statements.CREATE_KEYS.encode())
        few = statements.select_few(SCHEMA, table, keys.to_pylist())
        for sql in (statements.select_keys(SCHEMA, table), few):
            plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {sql}".encode()))
            assert "Index Scan using rows_ordered_pkey on rows_ordered it" in plan
    wrong = pa.table({"tenant_id": ["b"], KEY: ["7"]})
    for wanted in (keys, pa.concat_tables([wrong] * 300)):
        found = own.rows(table, wanted)["ingress_sequence"].to_pylist()
        assert found == ([7, 8, 9] if wanted is keys else [])
    own.close()


def test_a_writer_of_many_rows_runs_analyze(filled: Store, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MANY_ROWS", ROWS)
    filled.move(1, 2)
    filled.write(2, [appended(COUNTERS, counters(2 * ROWS).slice(ROWS))], changes=False)
    filled.finish(2)
    assert rows_believed(database) == 2 * ROWS
    filled.close()


def test_a_part_of_a_range_is_merged_once_however_many_parts_follow(filled: Store) -> None:
    some, others = (
        Outcome(COUNTERS, rows, rows.slice(0, 0), no_keys(), None)
        for rows in (counters(10), counters(20).set_column(2, "source_timestamp", pa.array([2] * 20)))
    )
    filled.move(1, 2)
    # What were merged a second time beside these rows would be merged into the same ones: Postgres refuses that.
    filled.write(2, [some, others], changes=False)
    filled.finish(2)
    found = filled.rows(COUNTERS, counters(20))
    assert found["source_timestamp"].to_pylist() == [2] * 20
    filled.rollback()
    filled.close()
