"""Lateness: which rows of a range come too late for an output, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.fold.arrow import column, identities
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.fold.tables import KEY
from tidelock.fold.windows.raises import table_of
from tidelock.fold.windows.watermarks import Collection, Course, Standing

SCHEMA = pa.schema(
    [("tenant_id", pa.string()), ("at", pa.int64()), ("threshold", pa.int64()), ("watermark", pa.int64())]
)


class Judged(NamedTuple):
    """The rows of a range."""

    accepted: pa.Table
    #: with the watermark that they were judged by, and the reason
    late: pa.Table


def judgements(
    tenant: str, standing: Standing, collections: Sequence[Collection], course: Course
) -> list[tuple[str, int, int, int | None]]:
    """The greatest time that is late, and the watermark, of the collections that have a late row."""
    found = []
    for collection, before in zip(collections, course.before, strict=True):
        threshold = standing.threshold(before)
        if collection.earliest is not None and collection.earliest <= threshold:
            found.append((tenant, collection.at, threshold, before))
    return found


def judgement_table(found: Sequence[tuple[str, int, int, int | None]]) -> pa.Table:
    return table_of(found, SCHEMA)


def judge(rows: pa.Table, found: pa.Table) -> Judged:
    """Rows of collections that have no judgement are in time."""
    own = identities(rows, "tenant_id", "source_timestamp")
    places = pc.index_in(own, value_set=identities(found, "tenant_id", "at"))
    late = pc.fill_null(pc.less_equal(rows["event_time"], column(found, "threshold").take(places)), False)
    watermarks = column(found, "watermark").take(places)
    behind = pc.fill_null(pc.less_equal(rows["event_time"], watermarks), False)
    told = rows.append_column("watermark", watermarks)
    told = told.append_column("reason", pc.if_else(behind, "late", "drained"))
    return Judged(rows.filter(pc.invert(late)), told.filter(late))


def late_rows(output: str, late: pa.Table) -> pa.Table:
    """Late rows as their table has them."""
    names = pa.repeat(output, late.num_rows)
    keys = joined(json_strings(names), number_strings(column(late, "ingress_sequence")))
    return late.append_column("window", names).append_column(KEY, keys)
