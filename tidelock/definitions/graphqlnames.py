"""Names in GraphQL: what each table is called there, and what no table can be called."""

from __future__ import annotations

from collections.abc import Collection

#: begins the names that GraphQL keeps for itself
INTROSPECTION = "__"
SCALARS = ("Int", "Float", "String", "Boolean", "ID", "bigint", "numeric", "timestamptz", "date", "json")
#: types that are there whatever is defined
TYPES = frozenset(
    {
        *("Query", "Mutation", "Subscription", "RowOperation", "order_by", "trigger"),
        *SCALARS,
        *(f"{scalar}_comparison_exp" for scalar in SCALARS),
    }
)


#: what follows a table's name in the names made of it: the type of its row events, of filters on it, of an order of it,
#: and the field that reads one row
UPDATE, FILTER, ORDER, ONE_ROW = "_update", "_bool_exp", "_order_by", "_by_pk"


def objection(table: str, others: Collection[str]) -> str | None:
    """Why a table cannot have that name beside others; None when it can."""
    if table.startswith(INTROSPECTION):
        return f"begins with {INTROSPECTION}, which is reserved for GraphQL"
    if table in TYPES:
        return "is a built-in name of GraphQL"
    for ending in (UPDATE, FILTER, ORDER, ONE_ROW):
        if table.endswith(ending) and table.removesuffix(ending) in others:
            return f"is a name that GraphQL needs for {table.removesuffix(ending)}"
    return None
