"""Order: the rows of a file by their time, within bounded memory, since the order of arrival decides what is late.

A first pass reads the file to its end. As long as it is in order nothing is kept: that part is read again when it is
needed. What comes after the first row that is out of order goes into sorted runs on disk, which are merged with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tidelock.instants import parse_epoch_ms, parse_rfc3339
from tidelock.model import Rejected
from tidelock.settings import Settings
from tidelock.sources.files.rows import FileRow, RowFile

if TYPE_CHECKING:
    from tidelock.sources.files.runs import SortedRuns

#: rows without a readable time come last: they count as current, and would make all others late
NEVER = 2**63 - 1
# How often the first pass tells how far it is.
_ROWS_PER_REPORT = 5_000


class _Moment(msgspec.Struct, rename="camel", gc=False):
    """Of an event's text only what orders it."""

    ts: str | int | None = None
    occurred_at: str | int | None = None


_moment = msgspec.json.Decoder(_Moment).decode


def time_of(row: FileRow) -> int:
    """When the row's event occurred, as far as that can be told without judging it."""
    if isinstance(row.text, Rejected):
        return NEVER
    try:
        found = _moment(row.text)
        value = found.occurred_at if found.ts is None else found.ts
        if value is None:
            return NEVER
        return parse_rfc3339(value) if isinstance(value, str) else parse_epoch_ms(value)
    except (ValueError, RecursionError):
        return NEVER


@dataclass(frozen=True, slots=True)
class SortRoom:
    """What sorting may take."""

    memory_bytes: int
    #: where runs are written; None: the system's directory for temporary files
    directory: Path | None = None

    @classmethod
    def of(cls, settings: Settings, *, embedded: bool) -> SortRoom:
        """As the settings say; beside an embedded database, which has room on disk, if they do not."""
        given = settings.import_sort_directory
        return cls(settings.import_sort_memory, given or (settings.data if embedded else None))


class InOrder:
    """The rows of a file in order of time; rows of one time, and those without any, keep their order in the file.

    That is one order for a file, whatever the room: a position in it outlives the process.
    """

    def __init__(self, opened: Callable[[], RowFile], room: SortRoom) -> None:
        self._opened = opened
        self._room = room
        self._runs: SortedRuns | None = None
        #: rows at the beginning of the file that are in order
        self._prefix = 0
        #: all rows there are
        self.count = 0

    @property
    def sorted_already(self) -> bool:
        return self._runs is None

    def read(self, told: Callable[[int, float], None], stopped: Callable[[], bool]) -> bool:
        """The first pass; False: it was stopped. Raises SettingsError where the file cannot be read to its end."""
        latest = -NEVER
        rows = self._opened()
        try:
            for row in rows.rows(0):
                time = time_of(row)
                if self._runs is None and time >= latest:
                    latest = time
                    self._prefix += 1
                else:
                    self._sorting().add(time, row)
                self.count += 1
                if self.count % _ROWS_PER_REPORT == 0:
                    told(self.count, rows.fraction)
                    if stopped():
                        return False
        finally:
            rows.close()
        return True

    def rows(self, after: int) -> Iterator[tuple[int, FileRow]]:
        """The rows after a number of first ones, each with its place in the order, from 1 on."""
        yield from islice(enumerate(self._ordered(), 1), after, None)

    def close(self) -> None:
        if self._runs is not None:
            self._runs.close()

    def _sorting(self) -> SortedRuns:
        if self._runs is None:
            # Here, because a file that is in order needs no Arrow, which takes a while to import.
            from tidelock.sources.files.runs import SortedRuns

            self._runs = SortedRuns(self._room.memory_bytes, self._room.directory)
        return self._runs

    def _ordered(self) -> Iterator[FileRow]:
        return self._first() if self._runs is None else self._runs.merged((time_of(row), row) for row in self._first())

    def _first(self) -> Iterator[FileRow]:
        rows = self._opened()
        try:
            yield from islice(rows.rows(0), self._prefix)
        finally:
            rows.close()
