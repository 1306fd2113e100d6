"""Statements on an older table. They are generated, because its columns are not ours: every name is quoted here."""

from __future__ import annotations

from psycopg import sql

from tidelock.sources.backfill.mapping import ID, RECEIVED_AT, Column, TableMap

#: a place in the order: received_at, occurred_at and id, as texts
Place = tuple[str, str, str]

_ALIAS = "old"
_WHOLE = ("smallint", "integer", "bigint")
_ID_TYPES = {
    "smallint": sql.SQL("smallint"), "integer": sql.SQL("integer"), "bigint": sql.SQL("bigint"),
    "numeric": sql.SQL("numeric"), "uuid": sql.SQL("uuid"),
}  # fmt: skip


class Statements:
    """The statements on one table, of which every column's meaning is known."""

    def __init__(self, schema: str, name: str, columns: TableMap) -> None:
        self._table = sql.SQL("{} AS {}").format(sql.Identifier(schema, name), sql.Identifier(_ALIAS))
        self._columns = columns
        received, occurred, row_id = columns.needed(RECEIVED_AT), columns.column("ts"), columns.needed(ID)
        self._received = _instant(received)
        self._occurred = sql.SQL("NULL::timestamptz") if occurred is None else _instant(occurred)
        # Without a time of its own an event happened when it was received.
        self._happened = sql.SQL("coalesce({}, {})").format(self._occurred, self._received)
        self._id = _ordered_id(row_id)
        self._id_type = _ID_TYPES.get(row_id.type, sql.SQL('text COLLATE "C"'))
        self._placed = sql.SQL("{} IS NOT NULL AND {} IS NOT NULL").format(self._received, _name(row_id))

    def rows(self, after: Place | None, limit: int | None = None) -> sql.Composed:
        """Every row behind a place, in order: the place, both instants in microseconds, then what the event carries."""
        carried = [_value(each.column, as_json=_is_json(each.target)) for each in self._columns.carried]
        return sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {}{}").format(
            sql.SQL(", ").join(
                [
                    sql.SQL("{}::text").format(self._received),
                    sql.SQL("{}::text").format(self._happened),
                    sql.SQL("{}::text").format(self._id),
                    _microseconds(self._received),
                    _microseconds(self._occurred),
                    sql.SQL("{} IS NULL").format(self._occurred),
                    *carried,
                ]
            ),
            self._table,
            self._where(after),
            self._order(),
            sql.SQL("") if limit is None else sql.SQL(" LIMIT {}").format(sql.Literal(limit)),
        )

    def count(self, after: Place | None) -> sql.Composed:
        """How many rows are behind a place."""
        return sql.SQL("SELECT count(*) FROM {} WHERE {}").format(self._table, self._where(after))

    def unplaced(self, limit: int) -> sql.Composed:
        """The rows that have no place in the order, and how many there are."""
        return sql.SQL("SELECT {}::text, count(*) OVER () FROM {} WHERE NOT ({}) LIMIT {}").format(
            self._id, self._table, self._placed, sql.Literal(limit)
        )

    def _where(self, after: Place | None) -> sql.Composed:
        if after is None:
            return sql.SQL("{}").format(self._placed)
        received, occurred, row_id = map(sql.Literal, after)
        return sql.SQL("{} AND ({}, {}, {}) > ({}::timestamptz, {}::timestamptz, {}::{})").format(
            self._placed, self._received, self._happened, self._id, received, occurred, row_id, self._id_type
        )

    def _order(self) -> sql.Composed:
        return sql.SQL("{}, {}, {}").format(self._received, self._happened, self._id)


def _name(column: Column) -> sql.Identifier:
    """With its table: a bare name in ORDER BY could be that of a text in the SELECT."""
    return sql.Identifier(_ALIAS, column.name)


def _instant(column: Column) -> sql.Composable:
    """As a timestamp with time zone, exactly."""
    if column.type in _WHOLE:
        return sql.SQL("(timestamptz 'epoch' + {} * interval '1 millisecond')").format(_name(column))
    if column.type == "timestamp without time zone":
        return sql.SQL("({} AT TIME ZONE 'UTC')").format(_name(column))
    return _name(column)


def _ordered_id(column: Column) -> sql.Composable:
    """Texts by code point, as everywhere: the order must not depend on the older server's language."""
    return sql.SQL('({}::text COLLATE "C")').format(_name(column)) if column.is_text else _name(column)


def _microseconds(instant: sql.Composable) -> sql.Composed:
    return sql.SQL("CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::bigint END").format(instant)


def _value(column: Column, *, as_json: bool) -> sql.Composed:
    if as_json and column.type not in ("json", "jsonb"):
        return sql.SQL("to_json({})::text").format(_name(column))
    return sql.SQL("{}::text").format(_name(column))


def _is_json(target: object) -> bool:
    return bool(getattr(target, "is_member", False))
