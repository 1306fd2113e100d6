"""Slices: large ranges, part by part, at the driver or in Spark's Python workers.

Where executors are other machines, a part is cut by sequence. A first pass leaves each slice as whole columns where it
was read, and reports only its collections to the driver; once these determine which rows are late, a second pass over
the columns aggregates them into panes. On one machine columns come to the driver at once: going through Python workers
twice takes more than the kernel itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tidelock.arrow import read_table, written_table
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.takings import Projection, Taking, collections_of, outputs_take, take, together
from tidelock.fold.store import Observe, unobserved
from tidelock.fold.windows.steps import HereRows

_Made = TypeVar("_Made")
#: above which sequence a part of a range begins, and the one it ends with
Part: TypeAlias = tuple[int, int]
#: a part that was read
Read: TypeAlias = "Gathered | Slices"

#: rows and bytes combined into one table: a column has one buffer
_ROWS, _BYTES = 131_072, 2**26
_CUT = pa.schema({"collections": pa.binary(), "wrong": pa.binary(), "events": pa.binary()})
_TOLD = ("collections", "wrong")
_TAKEN = pa.schema({"output": pa.int32(), "part": pa.string(), "data": pa.binary()})
_SPARK_CUT = "collections binary, wrong binary, events binary"
_SPARK_TAKEN = "output int, part string, data binary"
_PARTS = tuple(Taking.__slots__)


class PartReader:
    """Reads parts of ranges on a thread of its own, and the first part of the range that comes next."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slices")
        self._ahead: tuple[Part, Future[Read]] | None = None

    def ahead(self, lo: int, hi: int) -> Part | None:
        """The part of a range that is already being read; another one is forgotten."""
        if self._ahead is not None and not (self._ahead[0][0] == lo and self._ahead[0][1] <= hi):
            self.forget()
        return None if self._ahead is None else self._ahead[0]

    def forget(self) -> None:
        """That part was read for nothing: the next range is another one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead[1].cancel()

    def close(self) -> None:
        self.forget()
        self._thread.shutdown(cancel_futures=True)

    def run(
        self,
        parts: Sequence[Part],
        read: Callable[[Part], Callable[[], Read]],
        work: Callable[[Read], _Made],
        *,
        eager: bool,
        following: Part | None = None,
        observe: Observe = unobserved,
    ) -> Generator[_Made, None, None]:
        """What is made of each part of a range, of which `read` plans the reading.

        `eager`: the next part is read while one is worked on; otherwise while what was made of it is written.
        `following`: what is read of the next range, once everything of this one is.
        """
        coming: Future[Read] | None = None
        futures = self._begun(parts, read)
        try:
            coming = next(futures, None)
            while coming is not None:
                with observe("read"):
                    found, coming = coming.result(), None
                with closing(found):
                    if eager:
                        coming = next(futures, None)
                    if coming is None and following is not None:
                        self._ahead = following, self._thread.submit(read(following))
                    with observe("rest"):
                        made = work(found)
                coming = coming if eager else next(futures, None)
                yield made
        finally:
            if coming is not None:
                _close(coming)

    def _begun(self, parts: Sequence[Part], read: Callable[[Part], Callable[[], Read]]) -> Iterator[Future[Read]]:
        """Parts that are read. While one is, the next is planned."""
        ahead, self._ahead = self._ahead, None
        planned = None
        for number, part in enumerate(parts):
            known = ahead is not None and ahead[0] == part
            coming = ahead[1] if ahead is not None and known else self._thread.submit(planned or read(part))
            planned = read(parts[number + 1]) if number + 1 < len(parts) else None
            yield coming


def _close(coming: Future[Read]) -> None:
    if not coming.cancel() and coming.exception() is None:
        coming.result().close()


class Gathered:
    """A part of a range at the driver."""

    def __init__(self, read: Callable[[], pa.Table], projection: Projection) -> None:
        found = read()
        #: events with objections, or without a usable time
        self.wrong: Sequence[pa.Table] = [_wrong(found, projection)]
        self._rows = HereRows(found, projection)

    def collections(self) -> pa.Table:
        return self._rows.collections()

    def take(self, judged: Sequence[tuple[Output, pa.Table]]) -> Sequence[Taking]:
        return self._rows.take(judged)

    def close(self) -> None:
        """Nothing is kept elsewhere."""


class Slices:
    """A part of a range, cut into slices by Spark. Columns wait there for the second pass until it is closed."""

    def __init__(self, prepared: DataFrame, projection: Projection) -> None:
        self._projection = projection
        self._kept = prepared.mapInArrow(_Cut(projection), _SPARK_CUT).persist()
        told = self._kept.select(*_TOLD).toArrow()
        found = [read_table(data) for data in told["collections"]]
        self._collections = together(found) if found else None
        #: events with objections, or without a usable time
        self.wrong: Sequence[pa.Table] = [read_table(data) for data in told["wrong"]]

    def collections(self) -> pa.Table:
        return pa.table({"stream": pa.array([], pa.string())}) if self._collections is None else self._collections

    def take(self, judged: Sequence[tuple[Output, pa.Table]]) -> Sequence[Taking]:
        found = self._kept.select("events").mapInArrow(_Take(tuple(judged), self._projection), _SPARK_TAKEN).toArrow()
        parts: dict[tuple[int, str], list[pa.Table]] = defaultdict(list)
        outputs, names = found["output"].to_pylist(), found["part"].to_pylist()
        for number, part, data in zip(outputs, names, found["data"], strict=True):
            parts[number, part].append(read_table(data))
        return [Taking(*(pa.concat_tables(parts[number, part]) for part in _PARTS)) for number in range(len(judged))]

    def close(self) -> None:
        self._kept.unpersist()


@dataclass(frozen=True, slots=True)
class _Cut:
    """The first pass: what outputs need of a slice, as columns, and its summary."""

    projection: Projection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for prepared in _together(batches):
            events = outputs_take(prepared, self.projection)
            parts = [collections_of(events), _wrong(prepared, self.projection), events]
            yield pa.RecordBatch.from_arrays(
                [pa.array([written_table(part)], pa.binary()) for part in parts], schema=_CUT
            )


@dataclass(frozen=True, slots=True)
class _Take:
    """The second pass: what each output takes of a slice."""

    judged: tuple[tuple[Output, pa.Table], ...]
    projection: Projection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        events = [read_table(data) for batch in batches for data in batch.column(0)]
        if not events:
            return
        slice_ = pa.concat_tables(events)
        for number, (output, judgements) in enumerate(self.judged):
            taking = take(output, slice_, judgements, self.projection)
            for part in _PARTS:
                rows = getattr(taking, part)
                for start in range(0, max(rows.num_rows, 1), _ROWS):
                    yield _batch(number, part, rows.slice(start, _ROWS))


def _wrong(prepared: pa.Table, projection: Projection) -> pa.Table:
    wrong = pc.or_(pc.is_valid(prepared["objection"]), pc.is_valid(prepared["time_fault"]))
    return prepared.select([name for name in prepared.column_names if name not in projection.names]).filter(wrong)


def _batch(number: int, part: str, rows: pa.Table) -> pa.RecordBatch:
    values = [[number], [part], [written_table(rows)]]
    return pa.RecordBatch.from_arrays(
        [pa.array(value, of.type) for value, of in zip(values, _TAKEN, strict=True)], schema=_TAKEN
    )


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches combined into large tables, none too large for one string column."""
    found: list[pa.RecordBatch] = []
    for batch in batches:
        found.append(batch)
        if sum(each.num_rows for each in found) >= _ROWS or sum(each.nbytes for each in found) >= _BYTES:
            yield pa.Table.from_batches(found).combine_chunks()
            found = []
    if found:
        yield pa.Table.from_batches(found).combine_chunks()
