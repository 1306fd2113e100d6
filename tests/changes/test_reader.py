"""Changes: what the fold writes in segments comes back in one order, from any place, or not at all once it is gone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from itertools import product
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelock.changes.log import prune
from tidelock.changes.reader import Change, before_last, change_forms, pruned_through, read_batches, read_changes
from tidelock.changes.segments import change_schema, decode, encode
from tidelock.columns import parse_column_type
from tidelock.errors import ResumeExpired
from tidelock.postgres.database import Database

pytestmark = pytest.mark.check

Connection = psycopg.Connection[Any]

COLUMNS = {
    name: parse_column_type(text)
    for name, text in {
        "s": "string", "i": "int", "b": "bigint", "d": "double", "n": "decimal(18,4)", "o": "boolean",
        "t": "timestamp", "day": "date", "j": "json",
    }.items()
}  # fmt: skip
SIMPLE = {"n": parse_column_type("bigint")}
DAY = 86_400 * 10**9


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.connect_sync() as connected:
        yield connected


def change(table: str, time: int, key: str, number: int | None, tenant: str = "t") -> Change:
    return Change(table, time, tenant, key, old=None, new=None if number is None else {"n": number})


def arrow(changes: Sequence[Change], columns: Any = SIMPLE) -> pa.Table:
    names = ("tenant_id", "key", "source_timestamp", "old", "new")
    return pa.Table.from_pylist(
        [{name: getattr(each, name) for name in names} for each in changes], change_schema(columns)
    )


def one_lane(_: str) -> int:
    return 0


def write(
    connection: Connection, last_sequence: int, *changes: Change, rows_max: int = 2, age: str = "0s",
    columns: Any = SIMPLE, lane_of: Callable[[str], int] = one_lane,
) -> None:  # fmt: skip
    """What the fold does with a range's changes; the lane of each is told by its key."""
    for table, lane in {(each.table, lane_of(each.key)) for each in changes}:
        own = [each for each in changes if (each.table, lane_of(each.key)) == (table, lane)]
        own.sort(key=lambda each: each.place)
        for part, segment in enumerate(encode(arrow(own, columns), rows_max)):
            connection.execute(
                "INSERT INTO changes (table_name, last_sequence, lane, part, first_source_timestamp, "
                "last_source_timestamp, rows, recorded_at, segment) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, now() - %s::interval, %s)",
                (table, last_sequence, lane, part, segment.first_source_timestamp, segment.last_source_timestamp,
                 segment.rows, age, segment.data),
            )  # fmt: skip


def commit(connection: Connection, commit_id: int, last_sequence: int, time: int) -> None:
    connection.execute(
        "INSERT INTO commits VALUES (%s, %s, %s, %s, false, '')", (commit_id, last_sequence, last_sequence, time)
    )


RANGES = {
    3: [change("b", 10, "x", 1), change("a", 10, "y", 2), change("a", 10, "x", 3), change("a", 11, "x", 4)],
    5: [change("a", 20, "x", None), change("a", 20, "x", 6, "s"), change("b", 21, "é", 7), change("b", 21, "z", 8)],
    9: [change("c", 30, "k", 9)],
}
IN_ORDER = [
    change("a", 10, "x", 3), change("a", 10, "y", 2), change("b", 10, "x", 1), change("a", 11, "x", 4),
    change("a", 20, "x", 6, "s"), change("a", 20, "x", None), change("b", 21, "z", 8), change("b", 21, "é", 7),
    change("c", 30, "k", 9),
]  # fmt: skip


@pytest.fixture
def ranges(connection: Connection) -> Connection:
    for last_sequence, changes in RANGES.items():
        write(connection, last_sequence, *changes)
    return connection


def test_changes_come_by_source_timestamp_table_key_and_tenant(ranges: Connection) -> None:
    assert list(read_changes(ranges, after=0)) == IN_ORDER


def test_a_reader_continues_after_a_source_timestamp_and_stops_with_one(ranges: Connection) -> None:
    for after, through in product([0, 9, 10, 11, 15, 20, 21, 29, 30, 99], [None, 10, 20, 25, 30]):
        found = list(read_changes(ranges, after=after, through=through))
        assert found == [each for each in IN_ORDER if after < each.source_timestamp <= (through or 99)]


def test_a_reader_of_some_tables_has_those_only(ranges: Connection) -> None:
    found = list(read_changes(ranges, after=10, tables={"b", "c"}))
    assert found == [each for each in IN_ORDER if each.table != "a" and each.source_timestamp > 10]
    assert list(read_changes(ranges, after=0, tables=[])) == []


def test_the_last_changes_of_a_table_are_found_without_reading_all(ranges: Connection) -> None:
    own = [each for each in IN_ORDER if each.table == "a"]
    for count in range(1, 9):
        found = list(read_changes(ranges, after=before_last(ranges, "a", count), tables=["a"]))
        assert found[-count:] == own[-count:]
    assert len(list(read_changes(ranges, after=before_last(ranges, "a", 2), tables=["a"]))) == 2
    assert before_last(ranges, "nothing", 5) == 0
    ranges.execute("UPDATE changes_pruned SET source_timestamp = 12")
    assert before_last(ranges, "a", 99) == 12


def test_a_durable_reader_has_one_batch_per_range(ranges: Connection) -> None:
    found = [(batch.last_sequence, list(batch.changes)) for batch in read_batches(ranges, after=0)]
    assert [last for last, _ in found] == [3, 5, 9]
    assert [each for _, changes in found for each in changes] == IN_ORDER
    assert [batch.last_sequence for batch in read_batches(ranges, after=3)] == [5, 9]
    assert [batch.last_sequence for batch in read_batches(ranges, after=0, tables=["c"])] == [9]
    assert list(read_batches(ranges, after=9)) == []


def test_a_reader_has_one_page_of_a_table_in_memory(ranges: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.changes.log._PAGE_ROWS", 10)
    write(ranges, 11, *(change("a", 40, f"{n:04}", n) for n in range(100)), change("b", 41, "x", 1), rows_max=10)
    assert [each.new["n"] for each in read_changes(ranges, after=30) if each.new] == [*range(100), 1]
    reading = read_changes(ranges, after=30)
    assert next(reading).key == "0000"
    prune(ranges, 0)
    with pytest.raises(ResumeExpired):
        list(reading)


@pytest.mark.parametrize("seed", range(8))
def test_lanes_are_read_as_if_they_were_one(connection: Connection, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever the lanes, the sizes of segments and of pages."""
    chance = random.Random(seed)
    monkeypatch.setattr("tidelock.changes.log._PAGE_ROWS", chance.choice([1, 20, 70, 20_000]))
    lanes = {key: chance.randrange(4) for key in "abcdefgh"}
    tables, whole = "pq", []
    for last_sequence in range(1, 4):
        times = range(100 * last_sequence, 100 * last_sequence + 6)
        places = [(table, time, key, tenant) for table in tables for time in times for key in lanes for tenant in "tu"]
        changes = [change(table, time, key, number, tenant)
                   for number, (table, time, key, tenant) in enumerate(chance.sample(places, 40))]  # fmt: skip
        write(connection, last_sequence, *changes, rows_max=chance.choice([1, 3, 50]), lane_of=lanes.__getitem__)
        whole += sorted(changes, key=lambda each: each.place)
    assert list(read_changes(connection, after=0)) == whole
    assert [each for batch in read_batches(connection, after=1) for each in batch.changes] == whole[40:]
    for table in tables:
        own = [each for each in whole if each.table == table]
        assert list(read_changes(connection, after=0, tables=[table])) == own
        for count in (1, 2, 7, 30, 200):
            found = list(read_changes(connection, after=before_last(connection, table, count), tables=[table]))
            assert found[-count:] == own[-count:]


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_that_pruning_overtakes_gets_an_error(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("tidelock.changes.log._PAGE_ROWS", chance.choice([1, 7, 30]))
    whole = []
    for last_sequence in range(1, 9):
        places = [(table, 10 * last_sequence + time, key) for table in "pq" for time in range(3) for key in "abc"]
        changes = [change(*place, number) for number, place in enumerate(chance.sample(places, 12))]
        write(connection, last_sequence, *changes, rows_max=3)
        whole += sorted(changes, key=lambda each: each.place)
    found = []
    try:
        for each in read_changes(connection, after=0):
            found.append(each)
            if chance.random() < 0.05:
                prune(connection, 0, keep_after_sequence=chance.randrange(9))
    except ResumeExpired:
        assert found == whole[: len(found)]
    else:
        assert found == whole


def test_what_is_older_than_the_retention_goes_and_whoever_needs_it_is_reported(connection: Connection) -> None:
    for last_sequence, age in ((3, "3d"), (5, "2d"), (9, "1h")):
        write(connection, last_sequence, *RANGES[last_sequence], age=age)
        commit(connection, last_sequence, last_sequence, max(each.source_timestamp for each in RANGES[last_sequence]))
    assert prune(connection, 4 * DAY) == 0
    assert pruned_through(connection) == 0
    assert prune(connection, DAY) == 5
    assert pruned_through(connection) == 21
    assert [each.table for each in read_changes(connection, after=21)] == ["c"]
    assert [batch.last_sequence for batch in read_batches(connection, after=5)] == [9]
    for reading in (read_changes(connection, after=20), read_batches(connection, after=3)):
        with pytest.raises(ResumeExpired) as expired:
            next(reading)
        assert (expired.value.code, expired.value.http_status) == ("resume_expired", 410)
    assert prune(connection, 0) == 1
    assert pruned_through(connection) == 30


def test_what_a_durable_reader_has_not_read_stays(connection: Connection) -> None:
    for last_sequence in RANGES:
        write(connection, last_sequence, *RANGES[last_sequence], age="3d")
    connection.execute("INSERT INTO cursors VALUES ('fold', 1), ('fold:shadow', 2), ('triggers', 5), ('kafka', 9)")
    prune(connection, DAY, keep_after_sequence=4)
    assert pruned_through(connection) == 11
    prune(connection, DAY)
    assert pruned_through(connection) == 21
    assert list(read_changes(connection, after=21)) == RANGES[9]


def test_a_clock_that_was_set_back_leaves_no_gap(connection: Connection) -> None:
    for last_sequence, age in ((3, "1h"), (5, "3d"), (9, "1h")):
        write(connection, last_sequence, *RANGES[last_sequence], age=age)
    assert prune(connection, DAY) == 0
    assert list(read_changes(connection, after=0)) == IN_ORDER


def test_many_segments_are_removed_in_steps(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.changes.log._BATCH", 2)
    for last_sequence in range(1, 8):
        write(connection, last_sequence, *(change("a", last_sequence, f"{n}", n) for n in range(6)), age="3d")
    assert prune(connection, DAY) == 21
    assert pruned_through(connection) == 7


VALUES = st.fixed_dictionaries(
    {
        "s": st.none() | st.text(), "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "b": st.none() | st.integers(-(2**63), 2**63 - 1), "d": st.none() | st.floats(allow_nan=False),
        "n": st.none() | st.decimals(-(10**13), 10**13, allow_nan=False, places=4), "o": st.none() | st.booleans(),
        "t": st.none() | st.integers(-(2**63), 2**63 - 1), "day": st.none() | st.dates(), "j": st.just('{"a": [1.50]}'),
    }
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.none() | VALUES, st.none() | VALUES), max_size=20), st.integers(1, 7))
def test_a_segment_gives_back_every_value_as_it_was(rows: list[tuple[Any, Any]], rows_max: int) -> None:
    changes = [Change("x", time, "t", f"{time}", old=old, new=new) for time, (old, new) in enumerate(rows)]
    segments = list(encode(arrow(changes, COLUMNS), rows_max))
    assert [segment.rows for segment in segments[:-1]] == [rows_max] * max(0, len(segments) - 1)
    decoded = [row for segment in segments for row in decode(segment.data).to_pylist()]
    assert [(row["old"], row["new"]) for row in decoded] == rows
    assert [segment.first_source_timestamp for segment in segments] == list(range(0, len(rows), rows_max))


def test_outside_a_change_has_the_forms_of_lists() -> None:
    row = {
        "s": "x", "i": 1, "b": 2**62, "d": 1.5, "n": Decimal("-10.5000"), "o": True, "t": 1_500_000_000,
        "day": date(2026, 1, 31), "j": '{"a": 1.50}',
    }  # fmt: skip
    form = change_forms(COLUMNS)(Change("x", 2**60, "acme", "k", old=None, new=row))
    assert msgspec.json.encode(form).decode() == (
        f'{{"sourceTimestamp":"{2**60}","key":"k","old":null,"new":{{"tenant_id":"acme","s":"x","i":1,"b":{2**62},'
        '"d":1.5,"n":"-10.5","o":true,"t":"1970-01-01T00:00:01.5Z","day":"2026-01-31","j":{"a": 1.50}}}'
    )
    gone = change_forms(COLUMNS)(Change("x", 1, "acme", "k", old=dict.fromkeys(COLUMNS), new=None))
    assert gone["old"] == {"tenant_id": "acme", **dict.fromkeys(COLUMNS)}
