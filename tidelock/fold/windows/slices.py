"""Slices: a large range, cut by sequence, in Spark's Python workers.

The range is read and prepared once. A first pass leaves each slice as whole columns where it was read, and tells the
driver of its collections only; once these say which rows are late, a second pass over the columns makes panes of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tidelock.arrow import read_table, written_table
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.takings import (
    Carried,
    Taking,
    collections_of,
    outputs_take,
    take,
    together,
)

#: rows and bytes that are put together: a column of them has one buffer
_ROWS, _BYTES = 131_072, 2**26
_CUT = pa.schema({"collections": pa.binary(), "wrong": pa.binary(), "events": pa.binary()})
_TOLD = ("collections", "wrong")
_TAKEN = pa.schema({"output": pa.int32(), "part": pa.string(), "data": pa.binary()})
_SPARK_CUT = "collections binary, wrong binary, events binary"
_SPARK_TAKEN = "output int, part string, data binary"
_PARTS = tuple(Taking.__slots__)


class Slices:
    """A large range, prepared by Spark. Columns that wait for the second pass are kept until it is closed."""

    def __init__(self, prepared: DataFrame, carried: Carried, *, singly: bool) -> None:
        """`singly`: outputs take rows one by one, so the driver needs the columns themselves, and no second pass."""
        cut = prepared.mapInArrow(_Cut(carried), _SPARK_CUT)
        self._carried = carried
        self._kept = None if singly else cut.persist()
        told = cut.select(*_CUT.names if singly else _TOLD).toArrow()
        found = [read_table(data) for data in told["collections"]]
        self._collections = together(found) if found else None
        self._events = [read_table(data) for data in told["events"]] if singly else []
        #: events that are objected to, or whose time cannot be used
        self.wrong: Sequence[pa.Table] = [read_table(data) for data in told["wrong"]]

    def collections(self) -> pa.Table:
        return pa.table({"stream": pa.array([], pa.string())}) if self._collections is None else self._collections

    def take(self, judged: Sequence[tuple[Output, pa.Table]]) -> Sequence[Taking]:
        if self._kept is None:
            events = pa.concat_tables(self._events)
            return [take(output, events, judgements, self._carried) for output, judgements in judged]
        found = self._kept.select("events").mapInArrow(_Take(tuple(judged), self._carried), _SPARK_TAKEN).toArrow()
        parts: dict[tuple[int, str], list[pa.Table]] = defaultdict(list)
        outputs, names = found["output"].to_pylist(), found["part"].to_pylist()
        for number, part, data in zip(outputs, names, found["data"], strict=True):
            parts[number, part].append(read_table(data))
        return [Taking(*(pa.concat_tables(parts[number, part]) for part in _PARTS)) for number in range(len(judged))]

    def close(self) -> None:
        if self._kept is not None:
            self._kept.unpersist()


@dataclass(frozen=True, slots=True)
class _Cut:
    """The first pass: what outputs need of a slice, as columns, and what there is to know of it first."""

    carried: Carried

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for prepared in _together(batches):
            wrong = pc.or_(pc.is_valid(prepared["objection"]), pc.is_valid(prepared["time_fault"]))
            names = [name for name in prepared.column_names if name not in self.carried.names]
            events = outputs_take(prepared, self.carried)
            parts = [collections_of(events), prepared.select(names).filter(wrong), events]
            yield pa.RecordBatch.from_arrays(
                [pa.array([written_table(part)], pa.binary()) for part in parts], schema=_CUT
            )


@dataclass(frozen=True, slots=True)
class _Take:
    """The second pass: what each output takes of a slice."""

    judged: tuple[tuple[Output, pa.Table], ...]
    carried: Carried

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        events = [read_table(data) for batch in batches for data in batch.column(0)]
        if not events:
            return
        slice_ = pa.concat_tables(events)
        for number, (output, judgements) in enumerate(self.judged):
            taking = take(output, slice_, judgements, self.carried)
            for part in _PARTS:
                rows = getattr(taking, part)
                for start in range(0, max(rows.num_rows, 1), _ROWS):
                    yield _batch(number, part, rows.slice(start, _ROWS))


def _batch(number: int, part: str, rows: pa.Table) -> pa.RecordBatch:
    values = [[number], [part], [written_table(rows)]]
    return pa.RecordBatch.from_arrays(
        [pa.array(value, of.type) for value, of in zip(values, _TAKEN, strict=True)], schema=_TAKEN
    )


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches as tables of many rows, none of which is too large for one column of texts."""
    found: list[pa.RecordBatch] = []
    for batch in batches:
        found.append(batch)
        if sum(each.num_rows for each in found) >= _ROWS or sum(each.nbytes for each in found) >= _BYTES:
            yield pa.Table.from_batches(found).combine_chunks()
            found = []
    if found:
        yield pa.Table.from_batches(found).combine_chunks()
