"""What outputs take of a range does not depend on how it was cut into slices, nor on the order of the slices."""

from __future__ import annotations

import itertools
import subprocess
import sys
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.columns import BIGINT
from tidelock.definitions import parse_definitions
from tidelock.fold.kernel.outputs import Output, outputs_of
from tidelock.fold.kernel.panes import windows_of
from tidelock.fold.kernel.takings import Projection, Taking, collections_of, outputs_take, take, together
from tidelock.fold.kernel.watermarks import advanced
from tidelock.tables import GROUP, KEY

FRAMES: list[dict[str, Any]] = [{"tumbling": "10ns"}, {"hopping": ["10ns", "4ns"]}, {"session": "5ns"}, {"count": 3}]
SELECT = {
    "rows": "count(*)", "some": "count(q)", "total": "sum(q)", "mean": "avg(q)", "low": "min(q)", "high": "max(q)",
    "one": "first(q)", "other": "last(q)", "kinds": "unique_count(q)", "middle": "p50(q)", "most": "p99(q)",
}  # fmt: skip
PROJECTION = Projection(
    {
        "s": {
            ("group", "g"): "g",
            ("amount", "q"): "amount",
            ("amount misfit", "q"): "misfit",
            ("number", "q"): "double",
            ("value", "q"): "q",
            ("text", "q"): "text",
        }
    },
    ("g", "amount", "misfit", "double", "q", "text"),
)


def output(frame: dict[str, Any]) -> Output:
    window = {
        "stream": "s",
        "window": frame,
        "eventtime": {"enabled": True, "late_tolerance": "3ns"},
        "group_by": ["g"],
        "select": SELECT,
    }
    stream = {"columns": {"g": "string", "q": "bigint"}, "eventtime": {"column": "occurred_at"}}
    (found,) = outputs_of(parse_definitions({"streams": {"s": stream}, "windows": {"w": window}}), {})
    return found


rows = st.lists(
    st.fixed_dictionaries(
        {
            "tenant_id": st.sampled_from(["t", "t", "u"]),
            "stream": st.sampled_from(["s", "s", "s", "other"]),
            "event_time": st.integers(0, 40) | st.none(),
            "g": st.sampled_from(["a", "b", None]),
            "q": st.integers(-3, 3) | st.none(),
            "misfit": st.sampled_from([False, False, True]),
        }
    ),
    min_size=1,
    max_size=40,
)


def prepared(given_rows: list[dict[str, Any]], chance: Random) -> pa.Table:
    at = 0
    found = []
    for number, row in enumerate(given_rows, start=1):
        at += chance.choice([0, 0, 1])
        amount = None if row["misfit"] else row["q"]
        own = {"ingress_sequence": number, "source_timestamp": at, "deleted": chance.random() < 0.1, "objection": None}
        found.append({**row, **own, "amount": amount, "double": row["q"], "text": _text(row["q"])})
    types = {"amount": pa.decimal128(38, 9), "double": pa.float64(), "q": pa.int64(), "text": pa.string()}
    types |= {"event_time": pa.int64(), "objection": pa.string(), "g": pa.string()}
    names = list(found[0])
    return pa.table({name: pa.array([row[name] for row in found], types.get(name)) for name in names})


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def taken(output: Output, slices: list[pa.Table]) -> Taking:
    events = [outputs_take(each, PROJECTION) for each in slices]
    collections = together([collections_of(each) for each in events])
    own = collections.filter(pa.compute.equal(collections["stream"], "s"))
    judgements = advanced(own, {}, output.late_tolerance_ns).judgements
    takings = [take(output, each, judgements, PROJECTION) for each in events]
    return Taking(*(pa.concat_tables([getattr(each, name) for each in takings]) for name in Taking.__slots__))


def in_order(table: pa.Table, *by: str) -> list[dict[str, Any]]:
    names = sorted(table.column_names)
    return table.select(names).sort_by([(name, "ascending") for name in by]).to_pylist()


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: next(iter(frame)))
@given(rows, st.lists(st.integers(0, 40), max_size=3), st.randoms())
def test_slices_take_what_the_whole_takes(
    frame: dict[str, Any], given_rows: list[dict[str, Any]], cuts: list[int], chance: Random
) -> None:
    own = output(frame)
    assert own.types["q"] == BIGINT
    events = prepared(given_rows, chance)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(given_rows)), len(given_rows)]
    slices = [events.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)]
    chance.shuffle(slices)
    whole, parts = taken(own, [events]), taken(own, slices)
    for name in ("late", "errors"):
        assert in_order(getattr(parts, name), "ingress_sequence") == in_order(getattr(whole, name), "ingress_sequence")
    if "count" in frame:
        assert in_order(parts.rows, "ingress_sequence") == in_order(whole.rows, "ingress_sequence")
        return
    by = ("tenant_id", GROUP, "window_start") if "session" in frame else ("tenant_id", KEY)
    assert in_order(windows_of(own, parts.rows), *by) == in_order(windows_of(own, whole.rows), *by)


def test_the_kernel_of_windows_needs_neither_spark_nor_postgres() -> None:
    code = (
        "import sys; import tidelock.fold.kernel.takings, tidelock.fold.kernel.reorder; "
        "print([name for name in ('pyspark', 'psycopg', 'adbc_driver_postgresql') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
