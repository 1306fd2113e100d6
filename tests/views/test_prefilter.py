"""The prefilter: what may concern a filter is never left out, and with few filters nothing else is let through."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.views.histories import expression_of
from tests.where.filters import COLUMNS, Filter, Row, naive, rows, where
from tidelock.changes.segments import change_schema
from tidelock.columns import STRING
from tidelock.views import prefilter
from tidelock.views.branches import branches_of
from tidelock.views.prefilter import Prefilter
from tidelock.views.views import of_tenant
from tidelock.where import FALSE, TRUE, Expression

pytestmark = pytest.mark.check

Pair = tuple[str, Row | None, Row | None]
PAIRS = st.lists(st.tuples(st.sampled_from("tu"), st.none() | rows(), st.none() | rows()), max_size=12)
FILTERS = st.lists(st.tuples(where(), st.sampled_from([None, "t", "u"])), max_size=4)


def changes_of(pairs: list[Pair]) -> pa.Table:
    schema = change_schema({"k": STRING, **COLUMNS})
    made = [
        {"tenant_id": tenant, "key": str(number), "source_timestamp": number,
         "old": old and {"k": "", **old}, "new": new and {"k": "", **new}}
        for number, (tenant, old, new) in enumerate(pairs)
    ]  # fmt: skip
    return pa.Table.from_pylist(made, schema)


def concerned(pairs: list[Pair], filters: list[tuple[Filter, str | None]]) -> list[str]:
    """Keys of the changes that concern a filter, by the model."""
    return [
        str(number)
        for number, (tenant, *sides) in enumerate(pairs)
        if any(
            row is not None and of in (None, tenant) and naive(written, row) is True
            for row in sides
            for written, of in filters
        )
    ]


def prefiltering(*expressions: Expression) -> Prefilter:
    return Prefilter(expressions, [branch for each in expressions for branch in branches_of(each)])


def prefilter_of(filters: list[tuple[Filter, str | None]]) -> Prefilter:
    return prefiltering(*(of_tenant(expression_of(written), tenant) for written, tenant in filters))


@settings(max_examples=examples(40))
@given(PAIRS, FILTERS)
def test_a_prefilter_of_few_filters_lets_through_what_concerns_them(
    pairs: list[Pair], filters: list[tuple[Filter, str | None]]
) -> None:
    found = prefilter_of(filters).apply(changes_of(pairs))
    assert found["key"].to_pylist() == concerned(pairs, filters)


@settings(max_examples=examples(40))
@given(PAIRS, FILTERS)
def test_a_prefilter_of_many_filters_leaves_nothing_out(
    pairs: list[Pair], filters: list[tuple[Filter, str | None]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefilter, "_FILTERS_MAX", 0)
        found = prefilter_of(filters).apply(changes_of(pairs))
    assert set(found["key"].to_pylist()) >= set(concerned(pairs, filters))


def test_many_filters_are_looked_at_by_what_they_are_all_equal_to() -> None:
    pairs: list[Pair] = [("t", None, dict.fromkeys(COLUMNS) | {"s": f"{n}", "i": n}) for n in range(100)]
    equal = [expression_of({"s": {"_eq": f"{n}"}, "i": {"_gt": n}}) for n in range(40)]
    assert prefiltering(*equal).apply(changes_of(pairs)).num_rows == 40
    assert prefiltering(*equal, expression_of({"_or": [{"s": {"_is_null": True}}, {"i": {"_in": [70, 71]}}]})).apply(
        changes_of(pairs)
    )["key"].to_pylist() == [*map(str, range(40)), "70", "71"]
    assert prefiltering(*equal, TRUE).apply(changes_of(pairs)).num_rows == 100
    assert prefiltering(*equal, FALSE).apply(changes_of(pairs)).num_rows == 40


def test_a_segment_from_before_there_was_a_column_is_let_through() -> None:
    changes = changes_of([("t", None, dict.fromkeys(COLUMNS) | {"i": 1})])
    older = changes.drop_columns(["new", "old"])
    rows_without = pa.array([{"k": "a"}], pa.struct([("k", pa.string())]))
    older = older.append_column("old", rows_without).append_column("new", rows_without)
    assert prefiltering(expression_of({"i": {"_eq": 1}})).apply(older).num_rows == 1
    assert prefiltering(expression_of({"i": {"_eq": 1}, "k": {"_eq": "b"}})).apply(older).num_rows == 0
