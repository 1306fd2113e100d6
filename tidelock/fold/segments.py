"""Segments: changes of one table and range as compressed Arrow, so that a change costs bytes, not a database row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.columns import ColumnType
from tidelock.fold.arrow import arrow_type
from tidelock.fold.threads import each

#: changes of one segment: what a reader has in memory of a table at a time
ROWS_MAX = 20_000

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a range's changes, and what a row of `changes` tells of it."""

    rows: int
    first_source_timestamp: int
    last_source_timestamp: int
    #: Arrow IPC stream, zstd
    data: bytes


def change_schema(columns: Mapping[str, ColumnType]) -> pa.Schema:
    """What a table's changes look like: old and new have its columns, and are null where there was no row."""
    row = pa.struct([pa.field(name, arrow_type(type_)) for name, type_ in columns.items()])
    return pa.schema(
        [
            pa.field("tenant_id", pa.string(), nullable=False),
            pa.field("key", pa.string(), nullable=False),
            pa.field("source_timestamp", pa.int64(), nullable=False),
            pa.field("old", row),
            pa.field("new", row),
        ]
    )


def encode(changes: pa.Table, rows_max: int = ROWS_MAX) -> list[Segment]:
    """Segments of changes that are in order: by source timestamp, then key, then tenant."""
    parts = [changes.slice(start, rows_max) for start in range(0, changes.num_rows, rows_max)]
    return each(_segment, parts, min(rows_max, changes.num_rows))


def _segment(part: pa.Table) -> Segment:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as writer:
        writer.write_table(part)
    bounds = pc.min_max(part.column("source_timestamp"))
    return Segment(part.num_rows, bounds["min"].as_py(), bounds["max"].as_py(), sink.getvalue().to_pybytes())


def decode(data: bytes) -> pa.Table:
    """The changes of a segment."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
