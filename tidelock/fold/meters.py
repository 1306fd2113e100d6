"""Meters: which events count, for which counter and how much, as Spark SQL.

Meters are numbers here, in the order of the definitions: a number is cheaper to carry than a name. The meters of a
stream are in parallel slots, which streams share: a range is as wide as the stream with the most meters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelock.columns import DOUBLE
from tidelock.definitions import Definitions, Meter, Stream
from tidelock.fold.kernel.entries import DOUBLE_TEXT, JSON_TEXT, SLOT, TEXT
from tidelock.fold.kernel.meters import Meters
from tidelock.fold.streams import QUANTITY_TEXT, Slots, StreamSql, by_stream, sql_of_streams
from tidelock.spark import casts
from tidelock.where.sql import SPARK, where_sql

_TYPES = {"meter": "INT", "period_start": "BIGINT", "quantity": "STRING", "group_key": "STRING"}
#: beside these, where a meter counts distinct texts
_TEXT_TYPE = {"text": "STRING"}


class MeterSteps:
    """All meters together."""

    def __init__(self, definitions: Definitions, slots: Slots) -> None:
        self.meters: Sequence[Meter] = list(definitions.meters.values())
        self._of_stream = {
            name: [(number, meter) for number, meter in enumerate(self.meters) if meter.stream == name]
            for name in dict.fromkeys(meter.stream for meter in self.meters)
        }
        #: meters of the stream with the most of them
        self.width = max(map(len, self._of_stream.values()), default=0)
        self._slots = slots
        distinct = any(meter.distinct for meter in self.meters)
        self._types = _TYPES | _TEXT_TYPE if distinct else _TYPES
        self._texts = tuple(_text_kind(meter, slots.streams[meter.stream]) for meter in self.meters) if distinct else ()

    @property
    def streams(self) -> list[str]:
        return list(self._of_stream)

    def kernel(self, closed: Mapping[tuple[int, str], int], *, corrected: bool) -> Meters:
        """What the kernel has to know of them. `closed`: by meter and tenant, where open periods begin; `corrected`:
        whether any event was."""
        return Meters(
            names=tuple(meter.name for meter in self.meters),
            aggregations=tuple(meter.aggregation for meter in self.meters),
            lateness_ns=tuple(meter.lateness_ns for meter in self.meters),
            grouped=tuple(bool(meter.group_by) for meter in self.meters),
            live=tuple(meter.live for meter in self.meters),
            missing=tuple(map(missing_quantity, self.meters)),
            texts=self._texts,
            closed=closed,
            corrected=corrected,
        )

    @property
    def columns(self) -> list[str]:
        """The columns added by `prepared`."""
        return [SLOT.format(part=part, slot=slot) for slot in range(self.width) for part in self._types]

    def prepared(self) -> list[str]:
        """The event as counted by its stream's meters, slot by slot; null for a meter that does not count it."""
        known = sql_of_streams(self._slots)
        columns = []
        for slot in range(self.width):
            made = {
                name: _entry(*meters[slot], known[name])
                for name, meters in self._of_stream.items()
                if slot < len(meters)
            }
            for part, type_ in self._types.items():
                sql = by_stream({name: entry[part] for name, entry in made.items()}, type_)
                columns.append(f"{sql} AS {SLOT.format(part=part, slot=slot)}")
        return columns


def missing_quantity(meter: Meter) -> str:
    """The message for an event that has nothing for the meter to aggregate."""
    if meter.distinct:
        return f'"{meter.value}" is missing'
    return f'"{meter.value}" is missing, or no number below 10^19 with at most nine decimals'


def _entry(number: int, meter: Meter, stream_sql: StreamSql) -> dict[str, str]:
    """An event as a meter counts it, as SQL."""
    counts = "TRUE" if meter.where is None else f"COALESCE({where_sql(meter.where, SPARK, stream_sql.as_type)}, FALSE)"
    if meter.distinct:
        quantity = "CAST(NULL AS STRING)"
    elif meter.value == "quantity" and meter.value not in stream_sql.stream.columns:
        quantity = QUANTITY_TEXT
    else:
        quantity = f"CAST({stream_sql.quantity(meter.value)} AS STRING)"
    return {
        "meter": f"IF({counts}, {number}, NULL)",
        "period_start": casts.period_start(meter.period, "occurred_at"),
        "quantity": quantity,
        "group_key": stream_sql.joined(meter.group_by) if meter.group_by else "CAST(NULL AS STRING)",
        "text": _text(meter, stream_sql),
    }


def _text_kind(meter: Meter, stream: Stream) -> str | None:
    """What the kernel makes the text from that a meter counts. Java before 19 writes some doubles differently, so
    these are counted by their bits."""
    if not meter.distinct:
        return None
    return {None: JSON_TEXT, DOUBLE: DOUBLE_TEXT}.get(stream.type_of(meter.value), TEXT)


def _text(meter: Meter, stream_sql: StreamSql) -> str:
    kind = _text_kind(meter, stream_sql.stream)
    if kind is None:
        return "CAST(NULL AS STRING)"
    if kind == JSON_TEXT:
        return stream_sql.json(meter.value)
    return f"CAST({stream_sql.typed(meter.value)} AS STRING)" if kind == DOUBLE_TEXT else stream_sql.text(meter.value)
