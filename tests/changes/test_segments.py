"""Segments: both forms give back the same changes, whatever the rows are."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelock.changes.segments import Changes, change_schema, changes_of, decode, encode
from tidelock.changes.vectors import Ints, Packing, Planes, Unpacking
from tidelock.columns import ColumnType, parse_column_type
from tidelock.tables import COUNTERS

pytestmark = pytest.mark.check

Row = dict[str, Any]
#: tenant, key, source timestamp, old, new
Change = tuple[str, str, int, Row | None, Row | None]

COLUMNS = {
    name: parse_column_type(text)
    for name, text in {
        "s": "string", "i": "int", "b": "bigint", "d": "double", "n": "decimal(18,4)", "w": "decimal(38,9)",
        "o": "boolean", "t": "timestamp", "day": "date", "j": "json",
    }.items()
}  # fmt: skip
NUMBER = {"n": ColumnType("decimal", 38, 9)}
#: more than 64 bits
HUGE = Decimal("99999999999999999999999999999.999999999")
CENTS = st.decimals(-(10**6), 10**6, allow_nan=False, places=2)

VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "s": st.sampled_from(["", "é", "客户", "a\0b", "\U0001f600"]) | st.text(),
    "i": st.integers(-(2**31), 2**31 - 1),
    "b": st.sampled_from([-(2**63), 2**63 - 1, 0]) | st.integers(-(2**63), 2**63 - 1),
    "d": st.floats(),
    "n": st.decimals(-(10**13), 10**13, allow_nan=False, places=4),
    "w": st.sampled_from([HUGE, HUGE.copy_negate(), Decimal(0)])
    | st.decimals(-(10**6), 10**6, allow_nan=False, places=2),
    "o": st.booleans(),
    "t": st.integers(-(2**63), 2**63 - 1).map(lambda time: time // 10**6 * 10**6 if time > -(2**62) else time),
    "day": st.dates(),
    "j": st.sampled_from(["{}", '{"a": [1.50]}']),
}
ROWS = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Changes in order; most old rows are what the change before left, some are not."""
    places = st.tuples(st.sampled_from(["t", "客"]), st.sampled_from(["a", "b", "é", ""]))
    state: dict[tuple[str, str], Row | None] = {}
    changes: list[Change] = []
    for time, step in enumerate(draw(st.lists(st.dictionaries(places, st.none() | ROWS, max_size=4), max_size=8))):
        for tenant, key in sorted(step, key=lambda place: place[::-1]):
            new = step[tenant, key]
            old = draw(st.none() | ROWS) if draw(st.integers(0, 4)) == 0 else state.get((tenant, key))
            if new is not None and old is not None:
                new = draw(st.sampled_from([new, {**old, "s": new["s"]}]))
            changes.append((tenant, key, 1000 * time, old, new))
            state[tenant, key] = new
    return changes


def structs(changes: Sequence[Change], columns: Mapping[str, ColumnType] = COLUMNS) -> pa.Table:
    names = ("tenant_id", "key", "source_timestamp", "old", "new")
    return pa.Table.from_pylist([dict(zip(names, each, strict=True)) for each in changes], change_schema(columns))


def first_form(changes: pa.Table) -> bytes:
    """A segment as they were written at first, and are still kept."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(changes)
    return sink.getvalue().to_pybytes()


def written_out(segments: Sequence[Any]) -> list[Row]:
    return [row for segment in segments for row in decode(segment.data).to_pylist()]


def number(value: str | None) -> Row | None:
    return None if value is None else {"n": Decimal(value)}


def numbers(*changes: tuple[str, str | None, str | None]) -> pa.Table:
    """Changes of key, old and new number, one after another."""
    made = [("t", key, time, number(old), number(new)) for time, (key, old, new) in enumerate(changes)]
    return structs(made, NUMBER)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.integers(1, 40))
def test_both_forms_give_back_every_change(changes: list[Change], rows_max: int) -> None:
    table = structs(changes)
    first = decode(first_form(table))
    second = [decode(segment.data) for segment in encode(table, rows_max)]
    found = pa.concat_tables([change_schema(COLUMNS).empty_table(), *second])
    assert found.schema == first.schema == change_schema(COLUMNS)
    # As texts: NaN is no other value than itself, and zeros have signs.
    assert repr(found.to_pylist()) == repr(first.to_pylist())
    # Below a row that is not there may be anything.
    found.flatten().validate(full=True)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.integers(1, 40), st.booleans())
def test_texts_may_be_dictionaries_and_old_rows_need_not_be_minimal(
    changes: list[Change], rows_max: int, explicit: bool
) -> None:
    table = structs(changes)
    made = changes_of(table)
    old = [row for _, _, _, row, _ in changes if row is not None]
    old_rows = pa.Table.from_pylist(old, made.rows.schema) if explicit else made.old_rows
    rows, old_rows = (_dictionaries(each) for each in (made.rows, old_rows))
    existed = np.array([row is not None for _, _, _, row, _ in changes], bool)
    before = np.where(existed, -np.cumsum(existed) - 1, -1) if explicit else made.before
    given_ = Changes(
        made.tenant_id, made.key, made.source_timestamp, rows=rows, before=before, old_rows=old_rows, exists=made.exists
    )
    assert repr(written_out(encode(given_, rows_max))) == repr(table.to_pylist())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.sets(st.sampled_from(["a", "b", "é", ""])))
def test_all_changes_of_some_rows_may_be_chosen(changes: list[Change], keys: set[str]) -> None:
    made = changes_of(structs(changes))
    chosen = made.filter(pc.is_in(made.key.cast(pa.string()), pa.array(sorted(keys), pa.string())))
    wanted = structs([change for change in changes if change[1] in keys])
    assert repr(written_out(encode(chosen))) == repr(wanted.to_pylist())


def _dictionaries(rows: pa.Table) -> pa.Table:
    columns = zip(rows.column_names, rows.columns, strict=True)
    return pa.table({n: c.dictionary_encode() if pa.types.is_string(c.type) else c for n, c in columns})


def test_an_old_row_that_the_change_before_left_is_not_stored_again() -> None:
    chain = [("a", None, "1")] + [("a", str(n), str(n + 1)) for n in range(1, 400)]
    made = changes_of(numbers(*chain))
    assert made.old_rows.num_rows == 0
    assert made.before.tolist() == list(range(-1, 399))
    assert written_out(encode(made)) == numbers(*chain).to_pylist()


def test_an_old_row_in_an_earlier_segment_is_written_out() -> None:
    changes = numbers(("a", None, "1"), ("b", "7", "8"), ("a", "1", "2"), ("a", "2", None), ("a", None, "3"))
    for rows_max in range(1, 6):
        assert written_out(encode(changes, rows_max)) == changes.to_pylist()


def test_a_change_after_a_removal_has_no_old_row() -> None:
    removal = np.array([True, False, True])
    rows = pa.table({"n": pa.array([1, 2, 3])})
    texts = pa.array(["a"] * 3)
    changes = Changes(
        texts,
        texts,
        pa.array([1, 2, 3]),
        rows=rows,
        before=np.array([-1, 0, 1]),
        old_rows=rows.slice(0, 0),
        exists=removal,
    )
    found = written_out(encode(changes))
    assert [(row["old"], row["new"]) for row in found] == [(None, {"n": 1}), ({"n": 1}, None), (None, {"n": 3})]


def test_zeros_keep_their_signs() -> None:
    columns = {"d": ColumnType("double")}
    made = [("t", "a", 1, None, {"d": 0.0}), ("t", "a", 2, {"d": -0.0}, {"d": 1.0})]
    found = written_out(encode(structs(made, columns)))
    assert str(found[1]["old"]["d"]) == "-0.0"


def test_decimals_of_more_than_64_bits_come_back() -> None:
    changes = numbers(("a", None, str(HUGE)), ("a", str(HUGE), f"-{HUGE}"), ("b", "0.000000001", "-0.000000001"))
    assert written_out(encode(changes)) == changes.to_pylist()


def test_a_column_of_nulls_only_comes_back() -> None:
    columns = {"s": ColumnType("string"), "n": ColumnType("bigint")}
    changes = structs([("t", "a", 1, None, dict.fromkeys(columns))], columns)
    assert written_out(encode(changes)) == changes.to_pylist()


def test_nothing_has_no_segments() -> None:
    assert encode(change_schema(COLUMNS).empty_table()) == []


def test_a_segment_gives_its_times() -> None:
    segments = encode(numbers(*((key, None, "1") for key in "abcde")), 2)
    assert [(each.rows, each.first_source_timestamp, each.last_source_timestamp) for each in segments] == [
        (2, 0, 1), (2, 2, 3), (1, 4, 4),
    ]  # fmt: skip


def test_a_change_of_a_counter_takes_few_bytes() -> None:
    """Like those of `bench fold`, but fewer: 2,000 counters, quantities in cents."""
    chance = random.Random(5)
    state: dict[str, Row] = {}
    changes: list[Change] = []
    for at in range(6_000):
        customer = f"cus_{chance.randrange(2_000)}"
        old, quantity, seen = state.get(customer), Decimal(chance.randrange(65536)) / 100, 10**15 + at * 1_728 * 10**6
        total = quantity + (old["agg_sum"] if old else 0)
        state[customer] = {
            "metric": "api_calls", "customer_ref": customer, "period_start": 10**15, "agg_sum": total,
            "agg_count": 1 + (old["agg_count"] if old else 0), "agg_last": quantity, "watermark_ts": seen,
            "agg_max": max(quantity, old["agg_max"] if old else quantity), "value": total, "total": total,
            "agg_min": min(quantity, old["agg_min"] if old else quantity),
        }  # fmt: skip
        changes.append(("acme", f'["api_calls","{customer}","2026-03-01T00:00:00Z"]', at // 1000, old, state[customer]))
    table = structs(changes, COUNTERS.columns)
    (segment,) = encode(table)
    assert decode(segment.data).equals(table)
    assert len(segment.data) / segment.rows < 20
    assert len(segment.data) < len(first_form(table)) / 3


INTEGERS = st.sampled_from([0, 1, 100, 10**7, -(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(st.integers(0, 300), st.lists(INTEGERS, min_size=1, max_size=20), st.integers(1, 10**9), st.randoms())
def test_vectors_come_back(length: int, values: list[int], factor: int, chance: random.Random) -> None:
    def drawn() -> Ints:
        return np.array([chance.choice(values) for _ in range(length)], np.int64)

    plain, replaced = drawn(), drawn()
    vectors = [plain, plain * factor, np.cumsum(plain), plain + drawn(), replaced + 7]
    packing = Packing(length, [replaced])
    for vector in vectors:
        packing.put(vector, replaced)
    unpacking = Unpacking(length, packing.forms, Planes(b"".join(packing.planes)), [replaced])
    for vector in vectors:
        assert unpacking.take(lambda steps: steps + replaced).tolist() == vector.tolist()
