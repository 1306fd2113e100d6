"""Definitions of every kind of table, for tests of what is made of them."""

from __future__ import annotations

from tidelock.definitions import parse_definitions
from tidelock.tables import tables_of
from tidelock.views.catalog import TableCatalog

#: a column of every type
COLUMNS = {
    "id": "bigint", "s": "string", "i": "int", "b": "bigint", "d": "double", "n": "decimal(18,4)", "o": "boolean",
    "t": "timestamp", "y": "date", "j": "json",
}  # fmt: skip
DEFINITIONS = parse_definitions(
    {
        "streams": {
            "kinds": {"key": "id", "columns": COLUMNS},
            "pairs": {"key": ["s", "i"], "columns": {"s": "string", "i": "int", "n": "decimal(9,2)"}},
            "events": {"key": "customer_ref"},
            "readings": {
                "columns": {"at": "bigint", "v": "double"}, "ordered": True,
                "eventtime": {"column": "at", "type": "unixtimestamp_ms"},
            },
            "quiet": {"key": "id", "columns": {"id": "bigint"}, "live": False},
        },
        "meters": {"api_calls": {"group_by": ["data.region"]}},
        "windows": {
            "volume": {
                "stream": "kinds", "window": {"tumbling": "10s"}, "group_by": ["s", "t"],
                "select": {"total": "sum(n)", "rows": "count(*)", "first_y": "first(y)"},
            },
            "packs": {"stream": "kinds", "window": {"count": 3}, "select": {"rows": "count(*)"}},
        },
    }
)  # fmt: skip
TABLES = tables_of(DEFINITIONS)
SHAPE = TableCatalog(1, DEFINITIONS, TABLES)
