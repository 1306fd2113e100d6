"""Pieces: the rows of a large range as windows of time take them, gathered by Spark before anyone else sees them.

One step for all windows. A piece travels in columns by type, as many as the widest window needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from tidelock.columns import STRING, ColumnType
from tidelock.definitions import Hopping, Session, Tumbling
from tidelock.fold.readings import sql_text
from tidelock.fold.windows.carried import Carried, spark_type
from tidelock.fold.windows.entries import TAKEN
from tidelock.fold.windows.groups import with_group
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.states import aggregated_sql, state_columns
from tidelock.fold.windows.stretches import FIRST, later, slice_ns

_TIMES = ("tenant_id", "source_timestamp", "window_start", "window_end")


class Pieces:
    """The step of all windows of time."""

    def __init__(self, outputs: Sequence[Output], carried: Carried) -> None:
        self.outputs = [o for o in outputs if o.window is not None and isinstance(o.window.frame, _OF_TIME)]
        self._carried = carried
        self._places = {output.name: _places(output) for output in self.outputs}
        self._types = {place: type_ for of in self._places.values() for place, type_ in of.values()}

    def sql(self, judged: dict[str, int]) -> str:
        """Pieces of the view `judged`, where outputs have numbers in the array of thresholds."""
        return " UNION ALL ".join(self._select(output, judged.get(output.name)) for output in self.outputs)

    def read(self, output: Output, found: pa.Table) -> pa.Table:
        """The pieces of one output."""
        places = self._places[output.name]
        own = found.filter(pa.compute.equal(found["output"], self.outputs.index(output)))
        named = own.select([*_TIMES, *(place for place, _ in places.values())]).rename_columns([*_TIMES, *places])
        assert output.window is not None
        frame = output.window.frame
        if isinstance(frame, Session):
            ends = later(named["window_end"].combine_chunks(), frame.gap_ns)
            named = named.set_column(named.column_names.index("window_end"), "window_end", ends)
        return with_group(output, named)

    def _select(self, output: Output, number: int | None) -> str:
        window = output.window
        assert window is not None
        groups = {f"group_{n}": self._carried.group(output, name) for n, name in enumerate(window.group_by)}
        states = aggregated_sql(
            tuple(window.select.values()), lambda aggregate: self._carried.operand(output, aggregate), output.time
        )
        values = groups | states
        places = {place: values[name] for name, (place, _) in self._places[output.name].items()}
        shown = [f"{places.get(place, f'CAST(NULL AS {type_})')} AS {place}" for place, type_ in self._types.items()]
        by = ["tenant_id", *groups.values()]
        late = "" if number is None else f" AND COALESCE({output.time} > thresholds[{number}], TRUE)"
        rows = f"judged WHERE stream = {sql_text(output.stream)} AND {TAKEN} AND {output.time} IS NOT NULL{late}"
        if isinstance(window.frame, Session):
            start, end = f"min({output.time})", f"max({output.time})"
            rows = _islands(rows, by, output.time, window.frame.gap_ns)
            by.append("island")
        else:
            assert isinstance(window.frame, Tumbling | Hopping)
            start = end = _floored(output.time, slice_ns(window.frame))
            by.append(start)
        return (
            f"SELECT {self.outputs.index(output)} AS output, tenant_id, max(source_timestamp) AS source_timestamp, "
            f"{start} AS window_start, {end} AS window_end{''.join(f', {column}' for column in shown)} "
            f"FROM {rows} GROUP BY {', '.join(by)}"
        )


_OF_TIME = (Tumbling, Hopping, Session)


def _places(output: Output) -> dict[str, tuple[str, str]]:
    """Groups and states -> column and Spark's type."""
    window = output.window
    assert window is not None
    wanted: dict[str, ColumnType] = {f"group_{number}": STRING for number in range(len(window.group_by))}
    wanted |= state_columns(tuple(window.select.values()), output.types)
    counts: dict[str, int] = {}
    found = {}
    for name, type_ in wanted.items():
        kind = spark_type(type_)
        number = counts[kind] = counts.get(kind, -1) + 1
        found[name] = (f"piece_{re.sub(r'[^a-z0-9]+', '_', kind.lower()).strip('_')}_{number}", kind)
    return found


def _floored(time: str, length: int) -> str:
    return f"COALESCE(try_subtract({time}, pmod({time}, {length}L)), {FIRST + 1}L - 1L)"


def _islands(rows: str, by: Sequence[str], time: str, gap_ns: int) -> str:
    """Rows with the number of their session. What cannot be subtracted lies further apart than any gap."""
    order = f"PARTITION BY {', '.join(by)} ORDER BY {time}, ingress_sequence"
    near = f"COALESCE(try_subtract({time}, lag({time}) OVER ({order})) < {gap_ns}L, FALSE)"
    return (
        f"(SELECT *, sum(begins) OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS island "
        f"FROM (SELECT *, IF({near}, 0, 1) AS begins FROM {rows}))"
    )
