"""Ranges of the ledger from the lake, for refolding: files are read faster than tables.

Members of events' data keep the text that was sent; Spark's JSON functions would convert numbers through doubles.
Most events' data is flat, an object with nothing nested and no backslash in it: from such data, executors extract
members in parallel with an exact regular expression. The driver extracts them from all other data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tidelock.errors import Difference, SettingsError
from tidelock.fold.source import SMALL_EVENTS
from tidelock.fold.streams import BASE, Member, Slots
from tidelock.postgres.database import Database
from tidelock.sections import number_of
from tidelock.settings.groups import LakeSettings
from tidelock.sinks.columns import SEQUENCE, SPARK_SCHEMA
from tidelock.sinks.lakereader import Damaged, LakeReader
from tidelock.sinks.source import QUERIES
from tidelock.spark.runtime import Spark
from tidelock.where.sql import SPARK

_REPAIR = "`tidelock verify` names the first difference and the repair; or replay from the ledger"

#: Without a backslash no string has a quote in it, so every quote begins or ends one.
FLAT = r"^\s*\{[^\\{}\[\]]*\}\s*$"
_NAME = re.compile(r"[A-Za-z0-9_-]+")

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = msgspec.json.Decoder(str).decode


class LakeRanges:
    """The lake's part of the ledger at the time of creation. Files are opened only if their names say so."""

    def __init__(
        self,
        spark: Spark,
        settings: LakeSettings,
        database: Database,
        through: int,
        *,
        small_events: int = SMALL_EVENTS,
    ) -> None:
        """`through`: how far the lake is loaded. Raises SettingsError if there is nothing to read."""
        reader = LakeReader(settings.path) if settings.path is not None and through else None
        # The cursor may belong to another lake: at another path, or from before this one was restored from a backup.
        with _whole():
            last = reader.last() if reader is not None else None
        if reader is None or last is None:
            raise SettingsError("there is no lake to replay from: set `[lake] path` and load it", field="lake.path")
        self._spark = spark
        self._database = database
        self._reader = reader
        self._through = min(through, last[0])
        self._small_events = small_events

    def read(self, slots: Slots, lo: int, hi: int) -> DataFrame | None:
        """The range as the fold needs it; None: read it from the ledger, because it is not loaded yet, has few events,
        or has messages with event time.

        Raises Difference if the lake has a different number of events than the ledger: tables would silently differ.
        """
        if hi > self._through or hi - lo <= self._small_events or slots.timed:
            return None
        self._count(lo, hi)
        files = self._files(slots, lo, hi)
        if not slots.columns():
            return files.selectExpr(*map(_selected, _names(slots)))
        if not all(is_simple(member) for members in slots.members.values() for member in members):
            return self._taken_out(slots, files)
        flat = is_flat()
        nested = files.where(~flat)
        rows = files.where(flat).select("*", *slot_columns(slots))
        rows = rows.selectExpr(*map(_selected, [*_names(slots), *slots.columns()]))
        return rows.union(self._taken_out(slots, nested)) if nested.limit(1).count() else rows

    def _count(self, lo: int, hi: int) -> None:
        with self._database.connect_sync(name="tidelock replay") as connection:
            row = connection.execute(QUERIES.text("recorded").format(lo=lo, hi=hi).encode()).fetchone()
        assert row is not None, "it is a sum"
        with _whole():
            found = self._reader.count(lo, hi)
        if found != int(row[0]):
            within = f"from sequence {lo + 1} through {hi}"
            raise Difference(
                f"the lake has {number_of(found, 'event')} {within}, the ledger {int(row[0]):,}; {_REPAIR}"
            )

    def _files(self, slots: Slots, lo: int, hi: int) -> DataFrame:
        """The events of the range that are folded; executors read them."""
        urls = [self._reader.url(span) for span in self._reader.between(lo, hi)]
        files = self._spark.session.read.schema(SPARK_SCHEMA).parquet(*urls)
        rows = files.where(f"{SEQUENCE} > {lo} AND {SEQUENCE} <= {hi}")
        return rows.where(rows["stream"].isin(list(slots.streams)))

    def _taken_out(self, slots: Slots, events: DataFrame) -> DataFrame:
        """With members of data extracted by the driver, exactly, whatever the data looks like."""
        rows = events.selectExpr(*map(_selected, dict.fromkeys([*_names(slots), "data"]))).toArrow()
        texts = [
            member_texts(data, slots.members[stream])
            for stream, data in zip(rows["stream"].to_pylist(), rows["data"].to_pylist(), strict=True)
        ]
        made = {name: rows[name] for name in _names(slots)}
        for number, name in enumerate(slots.columns()):
            made[name] = pa.array([row[number] if number < len(row) else None for row in texts], pa.string())
        return self._spark.session.createDataFrame(pa.table(made))


def is_simple(member: Member) -> bool:
    """Whether a member is found in flat data by its pattern, or is the data itself."""
    return not member.path or (len(member.path) == 1 and _NAME.fullmatch(member.path[0]) is not None)


def pattern(member: Member) -> str:
    """The member's text, with a string's quotes, as the first group; of several with one name the last, as Postgres."""
    return rf'(?s)^.*"{member.path[0]}"\s*:\s*("[^"]*"|[^",}}\s]+)'


def is_flat() -> Column:
    """Whether an event's data is flat; where there is none, there is nothing to find."""
    return f.col("data").isNull() | f.col("data").rlike(FLAT)


def slot_columns(slots: Slots) -> list[Column]:
    """The slots' strings, from flat data."""
    return [_slot(slots.members, number).alias(name) for number, name in enumerate(slots.columns())]


def member_texts(data: str | None, members: Sequence[Member]) -> list[str | None]:
    """The texts of some members of one event's data."""
    found = _members(data)
    return [data if not member.path else _member_text(found, member) for member in members]


@contextmanager
def _whole() -> Iterator[None]:
    try:
        yield
    except Damaged as damage:
        raise Difference(f"the lake is damaged: {damage}; {_REPAIR}") from None


def _names(slots: Slots) -> list[str]:
    return list(dict.fromkeys([SEQUENCE, "source_timestamp", "tenant_id", "stream", "op", *BASE, *slots.envelope]))


def _selected(name: str) -> str:
    return f"ingested_at AS {name}" if name == "received_at" else SPARK.quoted(name)


def _slot(members: Mapping[str, Sequence[Member]], number: int) -> Column:
    found = f.lit(None).cast("string")
    for stream, listed in members.items():
        if number < len(listed):
            found = f.when(f.col("stream") == stream, _text(listed[number])).otherwise(found)
    return found


def _text(member: Member) -> Column:
    if not member.path:
        return f.col("data")
    value = f.regexp_extract("data", pattern(member), 1)
    # No match is an empty string, which no value is.
    text = f.when((value == "") | (value == "null"), None)
    return text.otherwise(value if member.raw else f.regexp_replace(value, '^"|"$', ""))


def _member_text(found: dict[str, msgspec.Raw] | None, member: Member) -> str | None:
    *steps, last = member.path
    for step in steps:
        if found is None or step not in found:
            return None
        found = _members(found[step])
    if found is None or last not in found:
        return None
    text = bytes(found[last]).decode()
    if text == "null":
        return None
    return text if member.raw or not text.startswith('"') else _string(text)


def _members(text: str | msgspec.Raw | None) -> dict[str, msgspec.Raw] | None:
    """Data that is not an object has no members."""
    if text is None:
        return None
    try:
        return _object(text)
    except msgspec.ValidationError:
        return None
