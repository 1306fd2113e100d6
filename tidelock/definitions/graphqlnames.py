"""Names in GraphQL: what each table is called there, and what no table can be called."""

from __future__ import annotations

from collections.abc import Collection

#: prefix of the names that GraphQL reserves
INTROSPECTION = "__"
SCALARS = ("Int", "Float", "String", "Boolean", "ID", "bigint", "numeric", "timestamptz", "date", "json")
#: types that exist whatever is defined
TYPES = frozenset(
    {
        *("Query", "Mutation", "Subscription", "RowOperation", "order_by", "trigger"),
        *SCALARS,
        *(f"{scalar}_comparison_exp" for scalar in SCALARS),
    }
)


#: suffixes of names derived from a table's name: the types of its row events, filters and orders, and the field that
#: reads one row
UPDATE, FILTER, ORDER, ONE_ROW = "_update", "_bool_exp", "_order_by", "_by_pk"


def objection(table: str, others: Collection[str]) -> str | None:
    """Why a table cannot have this name next to others; None if it can."""
    if table.startswith(INTROSPECTION):
        return f"begins with {INTROSPECTION}, which is reserved for GraphQL"
    if table in TYPES:
        return "is a built-in name of GraphQL"
    for ending in (UPDATE, FILTER, ORDER, ONE_ROW):
        if table.endswith(ending) and table.removesuffix(ending) in others:
            return f"is a name that GraphQL needs for {table.removesuffix(ending)}"
    return None
