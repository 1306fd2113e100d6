"""The lake's files: listed, published by one rename, removed; in a directory of this machine or behind a URL."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError

from tidelock.errors import SettingsError, Unreachable
from tidelock.fold.session import Spark, reason
from tidelock.ledger.account import belong_to_parent

_URL = re.compile(r"[a-z][a-z0-9+.-]+://.*", re.IGNORECASE | re.DOTALL)
_PART = re.compile(r"part-([0-9]{5,})-.*\.parquet")
EVENTS, STAGING = "events", "_staging"


class Files(Protocol):
    """A lake's place. A file is there as a whole, or not at all."""

    def names(self) -> list[str]:
        """Every Parquet file that a reader of the events finds."""

    def url(self, name: str) -> str:
        """How Spark calls a file of the events."""

    def staging(self, name: str) -> str:
        """How Spark calls an empty directory aside, which readers do not look into."""

    def publish(self, staged: str, parts: dict[int, str]) -> None:
        """Put the parts of a directory aside where readers find them, in place of what had their names."""

    def remove(self, name: str) -> None:
        """Remove a file of the events."""


def local_path(place: str) -> Path | None:
    """The directory that a lake's path names; None: it is a URL, for Spark's own file systems."""
    if place.startswith("file://"):
        return Path(place.removeprefix("file://"))
    return None if _URL.fullmatch(place) else Path(place).expanduser().absolute()


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
            raise SettingsError(f"the lake cannot be at {self.root}: {error.strerror}", field="lake.path") from None

    def names(self) -> list[str]:
        return sorted(path.name for path in self.events.glob("*.parquet"))

    def url(self, name: str) -> str:
        return (self.events / name).as_uri()

    def staging(self, name: str) -> str:
        place = self.root / STAGING / name
        shutil.rmtree(place, ignore_errors=True)
        return place.as_uri()

    def publish(self, staged: str, parts: dict[int, str]) -> None:
        place = self.root / STAGING / staged
        found = {int(name[1]): path for path in place.iterdir() if (name := _PART.fullmatch(path.name))}
        for number, target in sorted(parts.items()):
            _sync(found[number])
            belong_to_parent(found[number])
            os.replace(found[number], self.events / target)
        _sync(self.events)
        shutil.rmtree(place, ignore_errors=True)

    def remove(self, name: str) -> None:
        (self.events / name).unlink(missing_ok=True)
        _sync(self.events)


class SparkFiles:
    """Whatever Spark's own file systems reach by URL: an object store, HDFS."""

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

    def staging(self, name: str) -> str:
        self._call(lambda system: system.delete(self._path(f"{STAGING}/{name}"), True))
        return f"{self._root}/{STAGING}/{name}"

    def publish(self, staged: str, parts: dict[int, str]) -> None:
        place = f"{STAGING}/{staged}"
        names = self._call(
            lambda system: [status.getPath().getName() for status in system.listStatus(self._path(place))]
        )
        found = {int(name[1]): name.string for name in map(_PART.fullmatch, names) if name}
        for number, target in sorted(parts.items()):
            self._replace(f"{place}/{found[number]}", f"{EVENTS}/{target}")
        self._call(lambda system: system.delete(self._path(place), True))

    def remove(self, name: str) -> None:
        self._call(lambda system: system.delete(self._path(f"{EVENTS}/{name}"), False))

    def _replace(self, source: str, target: str) -> None:
        """A FileSystem's own rename refuses a name that is taken; a FileContext's can take its place."""
        jvm: Any = self._spark.session._jvm
        hadoop = jvm.org.apache.hadoop.fs
        overwrite = jvm.java.lang.reflect.Array.newInstance(hadoop.Options.Rename.OVERWRITE.getClass(), 1)
        overwrite[0] = hadoop.Options.Rename.OVERWRITE
        context = hadoop.FileContext.getFileContext(self._path("").toUri(), self._configuration())
        self._call(lambda _: context.rename(self._path(source), self._path(target), overwrite))

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
            raise Unreachable(f"the lake at {self._root} does not answer: {reason(error)}") from None


def _sync(path: Path) -> None:
    """On the disk before the cursor says so."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
