"""The lake as a reader without Spark sees it: rows of its files, in the order of their names."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from tidelock.errors import SettingsError, Unreachable
from tidelock.sinks.columns import NAMES, SCHEMA, SEQUENCE, conformed
from tidelock.sinks.files import EVENTS, local_path
from tidelock.sinks.spans import Span, span_of


class LakeReader:
    """One look at the files; the last one read is kept, because the next range is likely to be in it too."""

    name = "lake"

    def __init__(self, path: str) -> None:
        self._system, root = _system(path)
        local = local_path(path)
        self._place = path.rstrip("/") if local is None else local.as_uri()
        self._root = f"{root.rstrip('/')}/{EVENTS}"
        found = fs.FileSelector(self._root, allow_not_found=True)
        try:
            names = [info.base_name for info in self._system.get_file_info(found)]
        except OSError as error:
            raise Unreachable(f"the lake at {path} cannot be read: {error}") from None
        spans = {name: span_of(name) for name in names if name.endswith(".parquet")}
        #: files that a reader of `events/*.parquet` takes for the lake's
        self.foreign = sorted(name for name, span in spans.items() if span is None)
        self.spans = sorted(filter(None, spans.values()))
        self._kept: tuple[Span, pa.Table] | None = None

    def rows(self, lo: int, hi: int) -> pa.Table:
        """The events of a range; files whose names say that they have none of it are not opened."""
        parts = [self._file(span) for span in self.between(lo, hi)]
        if not parts:
            return SCHEMA.empty_table()
        whole = pa.concat_tables(parts)
        sequences = whole[SEQUENCE]
        return whole.filter(pc.and_(pc.greater(sequences, lo), pc.less_equal(sequences, hi)))

    def between(self, lo: int, hi: int) -> list[Span]:
        """The files that have something of a range, by their names."""
        return [span for span in self.spans if span.first <= hi and span.last > lo]

    def url(self, span: Span) -> str:
        """How Spark calls a file."""
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
            try:
                rows = pq.read_table(f"{self._root}/{span.file}", columns=list(NAMES), filesystem=self._system)
            except (OSError, pa.ArrowException) as error:
                raise Damaged(span, str(error).splitlines()[0]) from None
            self._kept = span, conformed(rows)
        return self._kept[1]


class Damaged(Exception):
    """A file that is not as it was written."""

    def __init__(self, span: Span, why: str) -> None:
        super().__init__(f"{span.file} cannot be read: {why}")
        self.span = span


def _system(path: str) -> tuple[fs.FileSystem, str]:
    local = local_path(path)
    if local is not None:
        return fs.LocalFileSystem(), str(local)
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise SettingsError(f"the lake at {path} cannot be read from here: {error}", field="lake.path") from None
    return found
