"""The lake's files: each holds the sequences given by its name, in a directory of this machine or behind a URL.

A file's name says which sequences belong in it, not which are already there: the last file is rewritten, in place, as
it fills. So a file is replaced by one rename, no event is ever in two files, and there is nothing to compact later.
"""

from __future__ import annotations

import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.account import belong_to_parent
from tidelock.sections import number_of
from tidelock.spark.runtime import Spark, reason

_NAME = re.compile(r"events-([0-9]{19})-([0-9]{19})\.parquet")

_URL = re.compile(r"[a-z][a-z0-9+.-]+://.*", re.IGNORECASE | re.DOTALL)
#: schemes where an object appears when it is fully written, and a rename is only a copy and a removal
_OBJECT_STORES = re.compile(r"(s3|s3a|s3n|gs|abfss?|wasbs?|oss|cosn|obs|oci)://", re.IGNORECASE)
_PART = re.compile(r"part-([0-9]{5,})-.*\.parquet")
EVENTS, STAGING = "events", "_staging"


class Span(NamedTuple):
    """The sequences from `first` through `last`."""

    first: int
    last: int

    @property
    def file(self) -> str:
        return f"events-{self.first:019}-{self.last:019}.parquet"


class Piece(NamedTuple):
    """Events above `lo` through `hi`, which belong in the file of a span."""

    span: Span
    lo: int
    hi: int


def span_of(name: str) -> Span | None:
    """The span of a file; None: it is not ours."""
    found = _NAME.fullmatch(name)
    return Span(int(found[1]), int(found[2])) if found else None


def home(sequence: int, spans: Sequence[Span], file_events: int) -> Span:
    """Where a sequence belongs: in the existing file for it, else in one that fits between its neighbours.

    `spans` are in order and do not overlap. Files written with another setting stay as they are.
    """
    place = bisect_right(spans, sequence, key=lambda span: span.first)
    if place and spans[place - 1].last >= sequence:
        return spans[place - 1]
    first = (sequence - 1) // file_events * file_events + 1
    last = first + file_events - 1
    if place:
        first = max(first, spans[place - 1].last + 1)
    if place < len(spans):
        last = min(last, spans[place].first - 1)
    return Span(first, last)


def pieces(
    lo: int, hi: int, spans: Sequence[Span], file_events: int, following: Callable[[int], int | None]
) -> Iterator[Piece]:
    """A step, cut where files end. `following` returns the next recorded sequence: numbers may be skipped."""
    while lo < hi:
        sequence = following(lo)
        if sequence is None or sequence > hi:
            return
        span = home(sequence, spans, file_events)
        yield Piece(span, lo if lo >= span.first else span.first - 1, min(hi, span.last))
        lo = span.last


def overlapping(spans: Sequence[Span]) -> tuple[Span, Span] | None:
    """Two files that share a sequence; spans are in order."""
    for one, other in pairwise(spans):
        if one.last >= other.first:
            return one, other
    return None


class Files(Protocol):
    """A lake's location. A file exists as a whole, or not at all."""

    def make(self) -> None:
        """Create it if it is missing."""

    def names(self) -> list[str]:
        """Every Parquet file that a reader of the events finds."""

    def url(self, name: str) -> str:
        """Spark's path of an event file."""

    def sweep(self) -> None:
        """Remove staged files left by killed steps."""

    def staging(self, name: str) -> str:
        """Spark's path of a staging directory, which readers ignore."""

    def publish(self, staged: str, parts: dict[int, str]) -> None:
        """Publish the parts of a staging directory, replacing files of the same names.

        Raises Unreachable if they are not what was written: then nothing is published.
        """

    def remove(self, name: str) -> None:
        """Remove a file of the events."""


def local_path(place: str) -> Path | None:
    """The directory of a lake's path; None: it is a URL, for Spark's own file systems."""
    if place.startswith("file:/"):
        named = urlsplit(place)
        if named.netloc not in ("", "localhost"):
            raise SettingsError(
                f"{place} names the host {named.netloc}; write file:///path for a local directory", field="lake.path"
            )
        return Path(unquote(named.path))
    return None if _URL.fullmatch(place) else Path(place).expanduser().absolute()


def hadoop_url(path: Path) -> str:
    """A path for Spark's file systems: a URL without escapes."""
    return f"file://{path}"


class LocalFiles:
    """A directory that driver and executors share, such as one of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events = root / EVENTS

    def make(self) -> None:
        try:
            for directory in (self.root, self.events):
                directory.mkdir(parents=True, exist_ok=True)
                belong_to_parent(directory)
        except OSError as error:
            raise SettingsError(
                f"the lake cannot be created at {self.root}: {error.strerror}", field="lake.path"
            ) from None

    def names(self) -> list[str]:
        return sorted(path.name for path in self.events.glob("*.parquet"))

    def url(self, name: str) -> str:
        return hadoop_url(self.events / name)

    def sweep(self) -> None:
        shutil.rmtree(self.root / STAGING, ignore_errors=True)

    def staging(self, name: str) -> str:
        return hadoop_url(self.root / STAGING / name)

    def publish(self, staged: str, parts: dict[int, str]) -> None:
        place = self.root / STAGING / staged
        found = _numbered([path.name for path in place.glob("*")], staged, parts)
        for number, target in sorted(parts.items()):
            part = place / found[number]
            _sync(part)
            belong_to_parent(part)
            os.replace(part, self.events / target)
        _sync(self.events)
        shutil.rmtree(place, ignore_errors=True)

    def remove(self, name: str) -> None:
        (self.events / name).unlink(missing_ok=True)
        _sync(self.events)


class SparkFiles:
    """Anything that Spark's own file systems reach by URL: an object store, HDFS."""

    def __init__(self, spark: Spark, root: str) -> None:
        self._spark = spark
        self._root = root.rstrip("/")

    def make(self) -> None:
        self._call(lambda system: system.mkdirs(self._path(EVENTS)))

    def names(self) -> list[str]:
        found = self._call(
            lambda system: [status.getPath().getName() for status in system.listStatus(self._path(EVENTS))]
        )
        return sorted(name for name in found if name.endswith(".parquet"))

    def url(self, name: str) -> str:
        return f"{self._root}/{EVENTS}/{name}"

    def sweep(self) -> None:
        self._call(lambda system: system.delete(self._path(STAGING), True))

    def staging(self, name: str) -> str:
        return f"{self._root}/{STAGING}/{name}"

    def publish(self, staged: str, parts: dict[int, str]) -> None:
        place = f"{STAGING}/{staged}"
        names = self._call(
            lambda system: [status.getPath().getName() for status in system.listStatus(self._path(place))]
        )
        found = _numbered(names, staged, parts)
        for number, target in sorted(parts.items()):
            self._replace(f"{place}/{found[number]}", f"{EVENTS}/{target}")
        self._call(lambda system: system.delete(self._path(place), True))

    def remove(self, name: str) -> None:
        self._call(lambda system: system.delete(self._path(f"{EVENTS}/{name}"), False))

    def _replace(self, source: str, target: str) -> None:
        """Replaces the file of that name, so that readers always find one.

        A FileSystem's rename refuses an existing name; a FileContext's can replace it. An object store's would remove
        the old object first.
        """
        jvm: Any = self._spark.session._jvm
        hadoop = jvm.org.apache.hadoop.fs
        found, wanted = self._path(source), self._path(target)
        if _OBJECT_STORES.match(self._root):
            given = (True, True, self._configuration())
            self._call(lambda system: hadoop.FileUtil.copy(system, found, system, wanted, *given))
            return
        gateway: Any = self._spark.session.sparkContext._gateway
        options = gateway.new_array(hadoop.Options.Rename, 1)
        options[0] = hadoop.Options.Rename.OVERWRITE
        context = hadoop.FileContext.getFileContext(self._path("").toUri(), self._configuration())
        self._call(lambda _: context.rename(found, wanted, options))

    def _path(self, below: str) -> Any:
        jvm: Any = self._spark.session._jvm
        return jvm.org.apache.hadoop.fs.Path(f"{self._root}/{below}".rstrip("/"))

    def _configuration(self) -> Any:
        session: Any = self._spark.session
        return session._jsparkSession.sessionState().newHadoopConf()

    def _call(self, work: Any) -> Any:
        try:
            return work(self._path("").getFileSystem(self._configuration()))
        except Py4JJavaError as error:
            if self._spark.lost(error):
                raise
            raise Unreachable(f"the lake at {self._root} does not respond: {reason(error)}") from None


def _numbered(names: list[str], staged: str, wanted: dict[int, str]) -> dict[int, str]:
    """The parts of a directory by number. Taking one of two for the whole would lose events."""
    found = [(int(name[1]), name.string) for name in map(_PART.fullmatch, names) if name]
    if sorted(number for number, _ in found) != sorted(wanted):
        had = f"{number_of(len(found), 'file')} instead of the {len(wanted):,} that were written"
        raise Unreachable(f"{STAGING}/{staged} of the lake has {had}; another loader or a clean-up may be changing it")
    return dict(found)


def _sync(path: Path) -> None:
    """Synced to disk before the cursor moves."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
