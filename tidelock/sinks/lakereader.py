"""The lake for readers without Spark: rows of its files, in the order of their names."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from tidelock.errors import SettingsError, Unreachable
from tidelock.sinks.columns import LATER, NAMES, SCHEMA, SEQUENCE, conformed
from tidelock.sinks.files import EVENTS, Span, hadoop_url, local_path, span_of


class LakeReader:
    """The files are listed once, on first use: a reader that first asks for the lake's position finds everything up to
    there.

    The last file read is kept, because the next range is likely to be in it too.
    """

    name = "lake"

    def __init__(self, path: str) -> None:
        self._system, root = _system(path)
        local = local_path(path)
        self._place = path.rstrip("/") if local is None else hadoop_url(local)
        self._root = f"{root.rstrip('/')}/{EVENTS}"
        self._kept: tuple[Span, pa.Table] | None = None

    @cached_property
    def _names(self) -> list[str]:
        try:
            found = self._system.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        except OSError as error:
            raise Unreachable(f"the lake at {self._place} cannot be read: {error}") from None
        return sorted(info.base_name for info in found if info.base_name.endswith(".parquet"))

    def strays(self) -> list[str]:
        """Foreign files that a reader of `events/*.parquet` would include."""
        said = "is not one of the lake's files, but readers would read it; remove it"
        return [f"{name} {said}" for name in self._names if span_of(name) is None]

    @cached_property
    def spans(self) -> list[Span]:
        return sorted(filter(None, map(span_of, self._names)))

    def rows(self, lo: int, hi: int) -> pa.Table:
        """The events of a range; files whose names exclude it are not opened."""
        parts = [self._file(span) for span in self.between(lo, hi)]
        if not parts:
            return SCHEMA.empty_table()
        whole = pa.concat_tables(parts)
        return whole.filter(_within(whole, lo, hi))

    def count(self, lo: int, hi: int) -> int:
        """The number of events of a range."""
        numbers = [self._read(span, [SEQUENCE]) for span in self.between(lo, hi)]
        return sum(pc.sum(_within(part, lo, hi)).as_py() or 0 for part in numbers)

    def between(self, lo: int, hi: int) -> list[Span]:
        """The files that have something of a range, by their names."""
        return [span for span in self.spans if span.first <= hi and span.last > lo]

    def url(self, span: Span) -> str:
        """Spark's path of a file."""
        return f"{self._place}/{EVENTS}/{span.file}"

    def last(self) -> tuple[int, int] | None:
        """Sequence and commit of the last event; None: there is none."""
        for span in reversed(self.spans):
            rows = self._file(span)
            if rows.num_rows:
                return rows[SEQUENCE][-1].as_py(), rows["commit_id"][-1].as_py()
        return None

    def _file(self, span: Span) -> pa.Table:
        if self._kept is None or self._kept[0] != span:
            self._kept = span, conformed(self._read(span, list(NAMES)))
        return self._kept[1]

    def _read(self, span: Span, columns: list[str]) -> pa.Table:
        try:
            place = f"{self._root}/{span.file}"
            with pq.ParquetFile(place, filesystem=self._system, pre_buffer=True) as file:
                there = set(file.schema_arrow.names)
                rows = file.read([name for name in columns if name in there])
        except (OSError, pa.ArrowException) as error:
            raise Damaged(span, f"cannot be read: {str(error).splitlines()[0]}") from None
        for name in columns:
            # Files of the first form lack those that came later.
            if name not in there and name not in LATER:
                raise Damaged(span, f"has no column {name}")
        for sequence in pc.min_max(rows[SEQUENCE]).as_py().values():
            # Ranges are found by file names: the sequence would not be found.
            if sequence is not None and not span.first <= sequence <= span.last:
                raise Damaged(span, f"contains sequence {sequence}, which does not belong there")
        return rows


class Damaged(Exception):
    """A file that was changed or damaged."""

    def __init__(self, span: Span, what: str) -> None:
        super().__init__(f"{span.file} {what}")
        self.span = span


def _within(rows: pa.Table, lo: int, hi: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater(rows[SEQUENCE], lo), pc.less_equal(rows[SEQUENCE], hi))


def _system(path: str) -> tuple[fs.FileSystem, str]:
    local = local_path(path)
    if local is not None:
        return fs.LocalFileSystem(), str(local)
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise SettingsError(
            f"the lake at {path} cannot be read from this machine: {error}", field="lake.path"
        ) from None
    return found
