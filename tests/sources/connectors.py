"""Foreign systems as the suite of connectors drives them: a real one over its stand-in, and one as small as can be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tests.sources.materialize import StandIn, standing_in
from tidelock.columns import ColumnType
from tidelock.definitions import Stream
from tidelock.errors import SettingsError, Unreachable
from tidelock.sources.connect.connector import Connector, KeyViolation, MomentPart, PositionLost, RowChange
from tidelock.sources.connect.materialize import Materialize

#: what every source has: rows {"id": bigint, "v": text} by id
STREAM = Stream("things", key=("id",), columns={"id": ColumnType("bigint"), "v": ColumnType("string")})
#: what none has
UNFIT = Stream("things", key=("id",), columns={"id": ColumnType("bigint"), "w": ColumnType("string")})


class Source(Protocol):
    """A foreign system that does what a test wants."""

    def connector(self, part_rows_max: int = 100) -> Connector: ...

    def commit(
        self, upserts: Mapping[int, str], deletes: Sequence[int] = (), violations: Sequence[int] = ()
    ) -> int: ...

    def advance(self) -> None: ...

    def lose_history(self) -> None: ...

    def cut(self) -> None: ...


class MaterializeSource:
    """The stand-in for Materialize."""

    def __init__(self, server: StandIn) -> None:
        self.server = server
        server.create("things", {"v": "text", "id": "bigint", "more": "bytea"}, "id")

    def connector(self, part_rows_max: int = 100) -> Connector:
        return Materialize(self.server.url(), "things", connect_timeout_s=5, part_rows_max=part_rows_max)

    def commit(self, upserts: Mapping[int, str], deletes: Sequence[int] = (), violations: Sequence[int] = ()) -> int:
        rows = [{"id": number, "v": text} for number, text in upserts.items()]
        return self.server.commit(
            "things", *rows, delete=[(number,) for number in deletes], violate=[(number,) for number in violations]
        )

    def advance(self) -> None:
        self.server.advance()

    def lose_history(self) -> None:
        self.advance()
        self.server.compact("things")

    def cut(self) -> None:
        self.server.cut()


class ListSource:
    """A list of moments in memory: the least that a connector can be."""

    def __init__(self) -> None:
        self.now = int(time.time() * 1000) - 1_000_000
        self.moments: list[tuple[int, list[RowChange], bool]] = []
        self.rows: dict[int, bytes] = {}
        self.kept_from = 0
        self.cuts = 0

    def connector(self, part_rows_max: int = 100) -> Connector:
        return ListConnector(self, part_rows_max)

    def commit(self, upserts: Mapping[int, str], deletes: Sequence[int] = (), violations: Sequence[int] = ()) -> int:
        self.now += 7
        made = {number: b'{"id":%d,"v":"%s"}' % (number, text.encode()) for number, text in upserts.items()}
        changes = [RowChange("upsert", row) for row in made.values()]
        changes += [RowChange("delete", b'{"id":%d}' % number) for number in deletes]
        self.moments.append((self.now, changes, bool(violations)))
        self.rows = {number: row for number, row in (self.rows | made).items() if number not in deletes}
        return self.now

    def advance(self) -> None:
        self.now += 1000

    def lose_history(self) -> None:
        self.advance()
        self.kept_from = self.now

    def cut(self) -> None:
        self.cuts += 1


class ListConnector:
    """Follows a ListSource, by looking every now and then."""

    def __init__(self, source: ListSource, part_rows_max: int) -> None:
        self.view, self.source, self.place = "things", "list/things", "memory"
        self._source = source
        self._part_rows_max = part_rows_max

    async def open(self, stream: Stream) -> None:
        if set(stream.columns) - {"id", "v"}:
            raise SettingsError(f"the list has no column {set(stream.columns) - {'id', 'v'}}")

    async def parts(self, after: str | None, not_before_ms: int | None = None) -> AsyncGenerator[MomentPart, None]:
        source, cuts = self._source, self._source.cuts
        if after is None:
            told = max(source.now, not_before_ms or 0)
            for part in self._split(told, [RowChange("upsert", row) for row in source.rows.values()], whole=True):
                yield part
        elif int(after) < source.kept_from:
            raise PositionLost(f"what came after {after} is forgotten")
        else:
            told = int(after)
        while True:
            # Before its moments are looked at: none up to here comes later.
            now = source.now
            for at, changes, violated in [each for each in source.moments if each[0] > told]:
                if violated:
                    raise KeyViolation(f"a key has several rows at {at}")
                for part in self._split(at, changes):
                    yield part
                told = at
            if now > told:
                told = now
                yield MomentPart(told, (), str(told))
            await asyncio.sleep(0.001)
            if source.cuts != cuts:
                raise Unreachable("cut")

    async def close(self) -> None:
        pass

    def _split(self, at: int, changes: list[RowChange], *, whole: bool = False) -> Iterator[MomentPart]:
        size = self._part_rows_max
        while len(changes) > size:
            yield MomentPart(at, changes[:size], None, whole)
            changes = changes[size:]
        yield MomentPart(at, changes, str(at), whole)


@contextmanager
def sourcing(kind: str, **options: Any) -> Iterator[Source]:
    """A foreign system of a kind, for the time of the block."""
    if kind == "list":
        yield ListSource()
        return
    with standing_in(**options) as server:
        yield MaterializeSource(server)


SOURCES = ("materialize", "list")
