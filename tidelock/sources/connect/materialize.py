"""The Materialize connector: a view followed by `SUBSCRIBE ... ENVELOPE UPSERT`, over COPY.

A timestamp is complete when a later one is seen, in a row or as progress. The position is the last complete one:
`AS OF` it, without a snapshot, Materialize returns later changes. That needs history, which a view keeps for its RETAIN
HISTORY; afterwards Materialize refuses, with messages and codes that vary by release. So any refusal of a position that
is not about the login or the view counts as its loss: a snapshot is always correct.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from tidelock.definitions import Stream
from tidelock.errors import SettingsError, TidelockError, Unreachable
from tidelock.postgres.reconnect import reason
from tidelock.sources.connect.connector import KeyViolation, MomentPart, PositionLost, RowChange
from tidelock.sources.connect.viewcolumns import ViewColumns, declaration, view_columns
from tidelock.sources.foreign import Address, address

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")
_PARTS_MAX = 3
#: mz_timestamp, mz_progressed, mz_state
_ENVELOPE_FIELDS = 3
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_NULL = b"\\N"


def view_parts(text: str) -> tuple[str, ...]:
    """The parts of a name by the rules of SQL: lower case unless quoted. Raises SettingsError."""
    parts: list[str] = []
    place = 0
    while found := _PART.match(text, place):
        quoted, bare = found.groups()
        parts.append(bare.strip().lower() if quoted is None else quoted.replace('""', '"'))
        place = found.end() + 1
        if found.end() == len(text) or text[found.end()] != ".":
            break
    if not parts or place != len(text) + 1 or len(parts) > _PARTS_MAX or not all(parts):
        raise SettingsError(
            f"--view {text!r} is not a valid view name (expected something like trades or public.trades)"
        )
    return tuple(parts)


class Materialize:
    """One view of a Materialize."""

    def __init__(self, url: str, view: str, *, connect_timeout_s: float, part_rows_max: int) -> None:
        self._address: Address = address(url, "Materialize", "tidelock connect", connect_timeout_s)
        self._parts = view_parts(view)
        self.view = ".".join(
            part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in self._parts
        )
        self.source = f"materialize/{self.view}"
        self.place = self._address.place
        #: the view's name without its schema
        self.name = self._parts[-1]
        self._part_rows_max = part_rows_max
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._columns: ViewColumns | None = None

    async def open(self, stream: Stream) -> None:
        await self.close()
        self._connection = await self._connected()
        try:
            found = await self._found_columns()
            if not stream.key or not stream.columns:
                raise SettingsError(
                    f'stream "{stream.name}" needs a key and columns; declare it in tidelock.toml as follows, with '
                    "the view's key columns as its key:\n\n"
                    f"{declaration(stream.name, found, stream.key)}\n",
                    field="stream",
                )
            self._columns = view_columns(stream, self.view, found)
        except BaseException:
            await self.close()
            raise

    async def parts(self, after: str | None, not_before_ms: int | None = None) -> AsyncGenerator[MomentPart, None]:
        assert self._connection is not None, "it is opened first"
        moments = Moments(None if after is None else int(after), self._part_rows_max)
        begun = False
        try:
            async with self._connection.cursor().copy(self._subscription(after, not_before_ms)) as copy:
                lines = Lines()
                async for block in copy:
                    begun = True
                    for line in lines.feed(bytes(block)):
                        for part in self._read(line, moments):
                            yield part
        except psycopg.Error as error:
            raise self._translated(error, resuming=None if begun else after, begun=begun) from None
        for part in moments.ended():
            yield part

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        try:
            return await psycopg.AsyncConnection.connect(**self._address.parameters, autocommit=True)
        except psycopg.Error as error:
            raise self._address.refusal(error) from None

    async def _found_columns(self) -> dict[str, str]:
        """The view's columns with their types."""
        assert self._connection is not None
        try:
            shown = await self._connection.execute(sql.SQL("SHOW COLUMNS FROM {}").format(self._identifier))
            return {row[0]: row[2] for row in await shown.fetchall()}
        except psycopg.OperationalError as error:
            raise self._away(error) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._forbidden(error) from None
        except psycopg.Error as error:
            hint = await self._near()
            raise SettingsError(f"--view: {self.place} has no {self.view}: {reason(error)}{hint}") from None

    async def _near(self) -> str:
        """Views with similar names."""
        assert self._connection is not None
        names: set[str] = set()
        for kind in (sql.SQL("SHOW MATERIALIZED VIEWS"), sql.SQL("SHOW VIEWS")):
            with suppress(psycopg.Error):
                names |= {str(row[0]) for row in await (await self._connection.execute(kind)).fetchall()}
        near = difflib.get_close_matches(self.name, sorted(names), n=3, cutoff=0.4)
        return f"; did you mean {' or '.join(near)}?" if near else ""

    def _subscription(self, after: str | None, not_before_ms: int | None) -> sql.Composed:
        assert self._columns is not None
        # Columns by name, key columns first: later columns of the view, and their order, do not matter.
        return sql.SQL(
            "COPY (SUBSCRIBE (SELECT {columns} FROM {view}) ENVELOPE UPSERT (KEY ({key})) WITH ({options}){as_of}) "
            "TO STDOUT"
        ).format(
            columns=sql.SQL(", ").join(map(sql.Identifier, self._columns.names)),
            view=self._identifier,
            key=sql.SQL(", ").join(map(sql.Identifier, self._columns.key)),
            options=sql.SQL("SNAPSHOT, PROGRESS" if after is None else "SNAPSHOT = false, PROGRESS"),
            as_of=_as_of(after, not_before_ms),
        )

    def _read(self, line: bytes, moments: Moments) -> Iterator[MomentPart]:
        """What a line completes."""
        assert self._columns is not None
        texts = fields(line)
        if len(texts) != _ENVELOPE_FIELDS + len(self._columns.names):
            raise Unreachable(f"{self.place} sent a row of {len(texts)} fields, which does not fit this subscription")
        timestamp, progressed, state, *values = texts
        assert timestamp is not None, "every row has one"
        at_ms = int(timestamp)
        if progressed == "t":
            yield from moments.progressed(at_ms)
            return
        yield from moments.reached(at_ms)
        if state == "key_violation":
            key = ", ".join(f"{name} = {value}" for name, value in zip(self._columns.key, values, strict=False))
            raise KeyViolation(
                f"view {self.view} has several rows of the key {key} at {at_ms}, so none of them can be recorded; "
                "make the key unique in the view, or choose other columns as the stream's key. Earlier rows are "
                "recorded; run again, it compares the view with what is recorded"
            )
        yield from moments.row(self._columns.change("delete" if state == "delete" else "upsert", values))

    def _translated(self, error: psycopg.Error, *, resuming: str | None, begun: bool) -> TidelockError | PositionLost:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return self._away(error)
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return self._forbidden(error)
        if resuming is not None:
            return PositionLost(f"changes after {resuming} are no longer available: {reason(error)}")
        if begun or isinstance(error, psycopg.InternalError):
            # The error will show when it is reopened.
            return self._away(error)
        return SettingsError(f"{self.place} cannot subscribe to {self.view}: {reason(error)}")

    def _away(self, error: psycopg.Error) -> Unreachable:
        return Unreachable(f"{self.place} went away: {reason(error)}")

    def _forbidden(self, error: psycopg.Error) -> SettingsError:
        return SettingsError(
            f"--from: at {self.place}: {reason(error)}; grant this user SELECT on {self.view} and USAGE on its schema "
            "and cluster"
        )

    @property
    def _identifier(self) -> sql.Identifier:
        return sql.Identifier(*self._parts)


def _as_of(after: str | None, not_before_ms: int | None) -> sql.Composable:
    if after is not None:
        return sql.SQL(" AS OF {}").format(sql.Literal(int(after)))
    if not_before_ms is not None:
        return sql.SQL(" AS OF AT LEAST {}").format(sql.Literal(not_before_ms))
    return sql.SQL("")


class Moments:
    """The timestamps of one subscription: from a snapshot on, or after a timestamp."""

    def __init__(self, after_ms: int | None, part_rows_max: int) -> None:
        self._part_rows_max = part_rows_max
        #: the snapshot is not complete yet
        self._whole = after_ms is None
        #: everything up to here was passed on
        self._told_ms = after_ms
        #: of the timestamp being received
        self._at_ms: int | None = None
        self._changes: list[RowChange] = []

    def reached(self, at_ms: int) -> Iterator[MomentPart]:
        """A row of this time arrived: earlier timestamps are complete."""
        if self._at_ms is not None and at_ms > self._at_ms:
            yield self._completed(self._at_ms)
        latest = self._told_ms if self._at_ms is None else self._at_ms
        if latest is not None and at_ms < latest:
            raise Unreachable(f"a row at {at_ms} arrived after progress to {latest}: the subscription is not reliable")
        self._at_ms = at_ms

    def row(self, change: RowChange) -> Iterator[MomentPart]:
        """A row of the time that was reached."""
        assert self._at_ms is not None, "a time is reached before its rows"
        self._changes.append(change)
        if len(self._changes) >= self._part_rows_max:
            yield MomentPart(self._at_ms, self._taken(), None, self._whole)

    def progressed(self, frontier_ms: int) -> Iterator[MomentPart]:
        """Nothing earlier than the frontier follows; there may be more at it."""
        if self._at_ms is None and self._whole:
            # The first message of a subscription is the time of its snapshot, which may be empty.
            self._at_ms = frontier_ms
        elif self._at_ms is not None and frontier_ms > self._at_ms:
            yield self._completed(frontier_ms - 1)
        elif self._at_ms is None and (self._told_ms is None or frontier_ms - 1 > self._told_ms):
            self._told_ms = frontier_ms - 1
            yield MomentPart(self._told_ms, (), str(self._told_ms))

    def ended(self) -> Iterator[MomentPart]:
        """Nothing follows."""
        if self._at_ms is not None:
            yield self._completed(self._at_ms)

    def _completed(self, through_ms: int) -> MomentPart:
        assert self._at_ms is not None
        part = MomentPart(self._at_ms, self._taken(), str(through_ms), self._whole)
        self._at_ms, self._whole, self._told_ms = None, False, through_ms
        return part

    def _taken(self) -> list[RowChange]:
        taken, self._changes = self._changes, []
        return taken


class Lines:
    """Whole lines from blocks, which need not end at line ends."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, block: bytes) -> Iterator[bytes]:
        # In a field a line break is escaped, so that every bare one ends a line.
        *lines, self._rest = (self._rest + block if self._rest else block).split(b"\n")
        return iter(lines)


def fields(line: bytes) -> list[str | None]:
    """The fields of a line; None is null. Raises UnicodeDecodeError for invalid UTF-8."""
    if b"\\" not in line:
        return list(line.decode().split("\t"))
    return [None if field == _NULL else _unescaped(field).decode() for field in line.split(b"\t")]


def _unescaped(field: bytes) -> bytes:
    return _ESCAPE.sub(_meant, field) if b"\\" in field else field


def _meant(escape: re.Match[bytes]) -> bytes:
    octal, hexadecimal, letter = escape.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 255])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return _LETTERS.get(letter, letter)
