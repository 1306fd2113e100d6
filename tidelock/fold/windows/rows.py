"""The rows of a range for outputs: at the driver, where the range is small, or in Spark.

Both tell of the collections first. Given what these did to the watermarks, they give the rows that are in time and
those that are late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from tidelock.fold.readings import sql_text
from tidelock.fold.source import single_partition
from tidelock.fold.windows.carried import Carried
from tidelock.fold.windows.entries import ENVELOPE, TAKEN, entries, rows_of, taken
from tidelock.fold.windows.lateness import Judged, judge
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.pieces import Pieces
from tidelock.fold.windows.progress import Progress
from tidelock.fold.windows.stretches import pieces_of
from tidelock.spark.runtime import Spark

_BY = ("stream", "tenant_id", "source_timestamp")


class Rows(Protocol):
    """The rows of a range."""

    def collections(self) -> pa.Table:
        """Rows and times of every collection, stream and tenant."""

    def judge(self, progresses: Sequence[Progress]) -> None:
        """Tell late rows apart, before any are asked for."""

    def late(self, progress: Progress) -> pa.Table:
        """Rows that come too late for an output."""

    def accepted(self, progress: Progress) -> pa.Table:
        """Entries of an output that takes them one by one."""

    def pieces(self, progress: Progress) -> pa.Table:
        """Pieces for windows of time."""


class HereRows:
    """A small range, at the driver."""

    def __init__(self, prepared: pa.Table, carried: Carried) -> None:
        self._events = taken(prepared, carried)
        self._carried = carried
        self._judged: dict[str, Judged] = {}

    def collections(self) -> pa.Table:
        wanted = [([], "count_all"), ("event_time", "min"), ("event_time", "max")]
        found = self._events.group_by(list(_BY), use_threads=False).aggregate(wanted)
        return found.rename_columns([*_BY, "rows", "earliest", "latest"])

    def judge(self, progresses: Sequence[Progress]) -> None:
        for progress in progresses:
            rows = rows_of(progress.output, self._events)
            self._judged[progress.output.name] = judge(rows, progress.judgements)

    def late(self, progress: Progress) -> pa.Table:
        return self._judged[progress.output.name].late

    def accepted(self, progress: Progress) -> pa.Table:
        return entries(progress.output, self._judged[progress.output.name].accepted, self._carried)

    def pieces(self, progress: Progress) -> pa.Table:
        return pieces_of(progress.output, self.accepted(progress))


class SparkRows:
    """A large range, prepared in Spark."""

    def __init__(self, spark: Spark, outputs: Sequence[Output], carried: Carried) -> None:
        self._spark = spark
        self._carried = carried
        self._pieces = Pieces(outputs, carried)
        timed = set(map(id, self._pieces.outputs))
        self._singly = sorted({output.stream for output in outputs if id(output) not in timed})
        self._streams = sorted({output.stream for output in outputs})
        self._gathered = self._events = self._late = pa.table({})

    def collections(self) -> pa.Table:
        return self._run(
            "SELECT stream, tenant_id, source_timestamp, count(*) AS rows, min(event_time) AS earliest, "
            f"max(event_time) AS latest FROM prepared WHERE {TAKEN} AND {_in(self._streams)} GROUP BY {', '.join(_BY)}"
        )

    def judge(self, progresses: Sequence[Progress]) -> None:
        late = [progress for progress in progresses if progress.judgements.num_rows]
        numbers = {progress.output.name: number for number, progress in enumerate(late)}
        source = "prepared"
        if late:
            single_partition(self._spark.session, _thresholds(late)).createOrReplaceTempView("judgements")
            source += f" LEFT JOIN judgements USING ({', '.join(_BY)})"
        hint = "/*+ BROADCAST(judgements) */ " if late else ""
        self._spark.session.sql(f"SELECT {hint}* FROM {source}").createOrReplaceTempView("judged")
        envelope = ", ".join(ENVELOPE)
        if late:
            latest = "event_time <= array_max(thresholds)"
            self._late = self._run(f"SELECT {envelope} FROM judged WHERE {TAKEN} AND {latest}")
        if self._pieces.outputs:
            self._gathered = self._run(self._pieces.sql(numbers))
        if self._singly:
            columns = ", ".join([envelope, *self._carried.names])
            self._events = self._run(f"SELECT {columns} FROM judged WHERE {TAKEN} AND {_in(self._singly)}")

    def late(self, progress: Progress) -> pa.Table:
        if not progress.judgements.num_rows:
            return self._late.slice(0, 0)
        return judge(rows_of(progress.output, self._late), progress.judgements).late

    def accepted(self, progress: Progress) -> pa.Table:
        rows = judge(rows_of(progress.output, self._events), progress.judgements).accepted
        return entries(progress.output, rows, self._carried)

    def pieces(self, progress: Progress) -> pa.Table:
        return self._pieces.read(progress.output, self._gathered)

    def _run(self, sql: str) -> pa.Table:
        return self._spark.session.sql(sql).toArrow()


def _thresholds(late: Sequence[Progress]) -> pa.Table:
    """Of collections that have late rows, the greatest time that is late for each output."""
    found: dict[tuple[str, str, int], list[int | None]] = {}
    for number, progress in enumerate(late):
        for row in progress.judgements.to_pylist():
            place = progress.output.stream, row["tenant_id"], row["at"]
            found.setdefault(place, [None] * len(late))[number] = row["threshold"]
    columns = [pa.array(values) for values in zip(*found, strict=True)]
    return pa.table([*columns, pa.array(found.values(), pa.list_(pa.int64()))], [*_BY, "thresholds"])


def _in(streams: Sequence[str]) -> str:
    return f"stream IN ({', '.join(map(sql_text, streams))})"
