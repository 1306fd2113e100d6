"""Columns in memory: their Arrow types, parsing text into them, and threads for working on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.columns import ColumnType

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

#: fewer rows are done before a thread has begun
_THREADED_ROWS_MIN = 10_000

_TYPES = {
    "string": pa.string(),
    "json": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
}


def arrow_type(column: ColumnType) -> pa.DataType:
    return pa.decimal128(column.precision, column.scale) if column.name == "decimal" else _TYPES[column.name]


def typed(texts: pa.ChunkedArray, column: ColumnType) -> pa.ChunkedArray:
    """Values that travelled as texts."""
    target = arrow_type(column)
    return texts if pa.types.is_string(target) else pc.cast(texts, target)


def identities(rows: pa.Table, *names: str) -> pa.Array:
    """Strings that identify rows by some columns, none of which contains NUL."""
    if len(names) == 1:
        return column(rows, names[0])
    return pc.binary_join_element_wise(*(column(rows, name).cast(pa.string()) for name in names), "\0")


def column(rows: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    found = rows[name]
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


#: rows of many string columns are a third as large this way, and are written and read as quickly
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")


def written_table(rows: pa.Table, *, packed: bool = False) -> bytes:
    """A table as a stream of Arrow's own; `packed` where it travels to another process through the JVM's memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_PACKED if packed else None) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def read_table(data: pa.Scalar) -> pa.Table:
    """The table of such a stream, without a copy."""
    with pa.ipc.open_stream(data.as_buffer()) as reader:
        return reader.read_all()


def each(function: Callable[[_Given], _Made], items: Iterable[_Given], rows: int) -> list[_Made]:
    """The results of a function for each item; `rows` says how large an item is.

    Uses threads where that pays: Spark waits meanwhile, and Arrow releases Python's lock.
    """
    return [function(item) for item in items] if rows < _THREADED_ROWS_MIN else list(_threads().map(function, items))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="columns")
