"""Groups: what the rows of a window have in common, as texts that identify it and as the values of its columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.columns import TIMESTAMP
from tidelock.fold.arrow import column, identities, typed
from tidelock.fold.keys import bounded, instant_strings, joined, json_strings
from tidelock.fold.tables import GROUP, KEY
from tidelock.fold.windows.outputs import Output

NOT_GROUPED = "[]"


def with_group(output: Output, rows: pa.Table) -> pa.Table:
    """Rows with the text that identifies their group."""
    members = _members(output, rows)
    texts = bounded(joined(*members)) if members else pa.repeat(NOT_GROUPED, rows.num_rows)
    return rows.append_column(GROUP, texts)


def row_keys(output: Output, rows: pa.Table, last: pa.Array) -> pa.Array:
    """Keys of windows: the texts of the group's columns, and one that tells the group's windows apart."""
    members = _members(output, rows)
    return bounded(joined(*members, pc.binary_join_element_wise('"', last, '"', ""))) if members else last


def start_keys(output: Output, rows: pa.Table) -> pa.Array:
    return row_keys(output, rows, instant_strings(column(rows, "window_start")))


def group_values(output: Output, rows: pa.Table) -> dict[str, pa.Array]:
    """The columns of the group in the window's table."""
    if output.window is None:
        return {}
    names = output.window.group_columns
    return {
        name: typed(rows[f"group_{number}"], type_)
        for number, (name, type_) in enumerate(zip(names, output.group_types, strict=True))
    }


def identity(rows: pa.Table, *names: str) -> pa.Array:
    """Dense numbers from 0 of what has the same tenant and the same values."""
    return identities(rows, "tenant_id", *names).dictionary_encode().indices.cast(pa.int64())


def keys_of(rows: pa.Table, name: str = KEY) -> pa.Table:
    """Tenant and key, or group, of rows, each once."""
    found = rows.select(["tenant_id", name]).rename_columns(["tenant_id", KEY])
    return found.group_by(["tenant_id", KEY]).aggregate([])


def _members(output: Output, rows: pa.Table) -> list[pa.Array]:
    """The columns' texts, as JSON."""
    found = []
    for number, type_ in enumerate(output.group_types):
        texts = column(rows, f"group_{number}")
        found.append(json_strings(instant_strings(texts.cast(pa.int64())) if type_ == TIMESTAMP else texts))
    return found
