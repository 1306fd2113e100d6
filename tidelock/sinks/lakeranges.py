"""Ranges of the ledger out of the lake, for a fold that is done anew: files are read faster than tables."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelock.errors import SettingsError
from tidelock.fold.session import Spark
from tidelock.fold.slots import BASE, Slots
from tidelock.fold.source import SMALL_EVENTS
from tidelock.settings.stores import Lake
from tidelock.sinks.columns import SEQUENCE
from tidelock.sinks.lakereader import LakeReader
from tidelock.sinks.members import member_texts
from tidelock.where.sql import SPARK


class LakeRanges:
    """What the lake has of the ledger when this is made. Files are opened only where their names say so."""

    def __init__(self, spark: Spark, settings: Lake, through: int, *, small_events: int = SMALL_EVENTS) -> None:
        """`through`: how far the lake is loaded. Raises SettingsError where there is nothing to read."""
        if settings.path is None or not through:
            raise SettingsError("there is no lake to replay from: set `[lake] path` and load it", field="lake.path")
        self._spark = spark
        self._reader = LakeReader(settings.path)
        self._through = through
        self._small_events = small_events

    def read(self, slots: Slots, lo: int, hi: int) -> DataFrame | None:
        """The range as the fold needs it; None: the ledger has to be asked.

        That is for what was not loaded yet, for a few events, and for messages in events that tell a time.
        """
        if hi > self._through or hi - lo <= self._small_events or slots.timed:
            return None
        return self._extracted(slots, lo, hi) if slots.columns() else self._plain(slots, lo, hi)

    def _plain(self, slots: Slots, lo: int, hi: int) -> DataFrame:
        """Columns of the envelope alone: the executors read the files."""
        urls = [self._reader.url(span) for span in self._reader.between(lo, hi)]
        rows = self._spark.session.read.parquet(*urls).where(f"{SEQUENCE} > {lo} AND {SEQUENCE} <= {hi}")
        return rows.where(rows["stream"].isin(list(slots.streams))).selectExpr(*map(_selected, _names(slots)))

    def _extracted(self, slots: Slots, lo: int, hi: int) -> DataFrame:
        """Members of data as well: the driver takes them out, exactly."""
        rows = self._reader.rows(lo, hi)
        streams = rows["stream"].to_pylist()
        wanted = pa.array([stream in slots.streams for stream in streams])
        rows = rows.filter(wanted)
        texts = [
            member_texts(data, slots.members[stream])
            for stream, data in zip(rows["stream"].to_pylist(), rows["data"].to_pylist(), strict=True)
        ]
        made = {name: rows["ingested_at" if name == "received_at" else name] for name in _names(slots)}
        for number, name in enumerate(slots.columns()):
            made[name] = pa.array([row[number] if number < len(row) else None for row in texts], pa.string())
        return self._spark.session.createDataFrame(pa.table(made))


def _names(slots: Slots) -> list[str]:
    return [SEQUENCE, "source_timestamp", "tenant_id", "stream", *BASE, *slots.envelope]


def _selected(name: str) -> str:
    return f"ingested_at AS {name}" if name == "received_at" else SPARK.quoted(name)
