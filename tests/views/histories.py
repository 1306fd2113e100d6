"""Random histories of a table, and a client that believes every word it is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.where.filters import COLUMNS, Filter, Row, naive, rows
from tidelock.changes.reader import Change
from tidelock.columns import STRING
from tidelock.tables import Table
from tidelock.views.views import ViewEvent
from tidelock.where import Expression, parse_where

TABLE = Table("things", {"k": STRING, **COLUMNS}, ("k",))
TENANTS = ("t", "u")
#: a row's place: tenant and key
Place = tuple[str, str]
State = dict[Place, Row]


def histories(steps_max: int = 12) -> st.SearchStrategy[list[list[Change]]]:
    """Collections of changes, with times of their own; some change nothing."""
    places = st.tuples(st.sampled_from(TENANTS), st.sampled_from("abcd"))
    step = st.dictionaries(places, st.one_of(st.none(), rows(), _some_columns()), min_size=1, max_size=3)
    return st.lists(step, min_size=1, max_size=steps_max).map(_history)


def _some_columns() -> st.SearchStrategy[Row]:
    return st.tuples(rows(), st.sets(st.sampled_from(list(COLUMNS)), max_size=2)).map(
        lambda drawn: {name: drawn[0][name] for name in drawn[1]}
    )


def _history(steps: Iterable[Mapping[Place, Row | None]]) -> list[list[Change]]:
    state: State = {}
    history = []
    for number, step in enumerate(steps):
        changes = []
        for (tenant, key), values in sorted(step.items(), key=lambda item: item[0][::-1]):
            old = state.get((tenant, key))
            new = None if values is None else {**(old or {"k": key, **dict.fromkeys(COLUMNS)}), **values}
            if old is not None or new is not None:
                changes.append(Change(TABLE.name, 10 * number, tenant, key, old=old, new=new))
            state.pop((tenant, key), None)
            state |= {} if new is None else {(tenant, key): new}
        history.append(changes)
    return history


def expression_of(written: Filter) -> Expression:
    return parse_where(written, {"tenant_id": STRING, **TABLE.columns})


def visible(state: State, written: Filter, tenant_id: str | None) -> State:
    """The rows a filter is true of, by the model."""
    return {
        place: {"tenant_id": place[0], **row}
        for place, row in state.items()
        if tenant_id in (None, place[0]) and naive(written, row) is True
    }


def states(history: Sequence[Sequence[Change]]) -> list[State]:
    """What the table holds after each collection."""
    state: State = {}
    found = []
    for changes in history:
        for change in changes:
            state.pop((change.tenant_id, change.key), None)
            state |= {} if change.new is None else {(change.tenant_id, change.key): change.new}
        found.append(dict(state))
    return found


def comparable(state: State) -> dict[Place, dict[str, Any]]:
    """NaN is equal to NaN here."""
    return {
        place: {name: "NaN" if value != value else value for name, value in row.items()} for place, row in state.items()
    }


class Client:
    """Rows made of events alone. Asserts that each makes sense to who knows what was told before."""

    def __init__(self, rows: State | None = None) -> None:
        self.rows: State = dict(rows or {})
        self.times: list[int] = []

    def put(self, event: ViewEvent) -> None:
        place = event.tenant_id, event.key
        known = self.rows.pop(place, None)
        assert event.row["tenant_id"] == event.tenant_id
        assert list(event.row) == ["tenant_id", *TABLE.columns]
        assert "tenant_id" not in event.fields
        match event.operation:
            case "INSERT":
                assert known is None
                assert event.fields == tuple(TABLE.columns)
                self.rows[place] = event.row
            case "UPDATE":
                assert known is not None
                assert event.fields
                self.rows[place] = {**known, **{name: event.row[name] for name in event.fields}}
                assert comparable({place: self.rows[place]}) == comparable({place: event.row})
            case "DELETE":
                assert known is not None
                assert event.fields == TABLE.key
        self.times.append(event.source_timestamp)
        assert self.times == sorted(self.times)
