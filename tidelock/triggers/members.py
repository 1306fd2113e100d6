"""Members: which keys are in the condition of a trigger that has `unmatch`, and must be remembered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from tidelock.changes.reader import Change
from tidelock.postgres.queries import load
from tidelock.triggers.watches import Crossing, Watch

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

_ROWS = 10_000


class Members:
    """Those that were looked up, with what has become of them; written in the caller's transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        #: trigger and key
        self._known: set[tuple[int, str]] = set()
        #: since when those are in that are not written yet; None: they are out
        self._changed: dict[tuple[int, str], int | None] = {}

    def look_up(self, concerned: Iterable[tuple[Change, Watch]]) -> None:
        """Find out whether these keys are in these triggers."""
        wanted = {(watch.id, change.key) for change, watch in concerned}
        self._known.clear()
        if wanted:
            asked = {"triggers": list({id_ for id_, _ in wanted}), "keys": list({key for _, key in wanted})}
            self._known.update(self._connection.execute(QUERIES["members"], asked).fetchall())

    def has(self, watch: Watch, key: str) -> bool:
        return (watch.id, key) in self._known

    def cross(self, crossing: Crossing) -> None:
        place = crossing.watch.id, crossing.key
        entered = crossing.event_type == "MATCH"
        (self._known.add if entered else self._known.discard)(place)
        self._changed[place] = crossing.source_timestamp if entered else None

    def enter(self, crossing: Crossing) -> None:
        """One of many that are in from the beginning: they are not looked up before they are written."""
        self._changed[crossing.watch.id, crossing.key] = crossing.source_timestamp
        if len(self._changed) >= _ROWS:
            self.write()

    def write(self) -> None:
        if not self._changed:
            return
        triggers, keys = zip(*self._changed, strict=True)
        # A key may have left and entered again: then it is in since another moment.
        self._connection.execute(QUERIES["remove_members"], {"triggers": list(triggers), "keys": list(keys)})
        entered = [(id_, key, time) for (id_, key), time in self._changed.items() if time is not None]
        if entered:
            columns = [list(column) for column in zip(*entered, strict=True)]
            named = dict(zip(("triggers", "keys", "times"), columns, strict=True))
            self._connection.execute(QUERIES["add_members"], named)
        self._changed.clear()
