"""The evaluator: the durable reader that finds transitions, for as long as it runs, whatever is lost meanwhile.

It wakes when the fold announces what it did and looks by itself now and then. All it knows is in the database: it can
be killed at any moment, and any number may run, of which one works and the others stand by. It reads no clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import psycopg

from tidelock.errors import Unreachable
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.triggers.evaluation import CHANGES_MAX, Evaluation
from tidelock.triggers.outbox import EventType

log = logging.getLogger(__name__)

#: name of its cursor
CURSOR = "triggers"
#: the fold announces here how far it is
_CHANNEL = "tidelock_fold"
_POLL_S = 2.0
#: how long it takes at most to see that it should stop
_PATIENCE_S = 0.25
_PAUSES_S = (0.1, 0.5, 1, 2, 5, 10)


class Evaluator:
    """Evaluates triggers until it is told to stop. Sync: to be run on a thread."""

    def __init__(self, database: Database, *, changes_max: int = CHANGES_MAX) -> None:
        self._database = database
        self._changes_max = changes_max
        self._counted: dict[EventType, int] = {"MATCH": 0, "UNMATCH": 0}
        self._evaluation: Evaluation | None = None

    @property
    def transitions(self) -> Mapping[EventType, int]:
        """How many this process has found, by type."""
        now = self._evaluation.transitions if self._evaluation is not None else {}
        return {event_type: count + now.get(event_type, 0) for event_type, count in self._counted.items()}

    def run(self, stop: threading.Event) -> None:
        """Whatever happens to the database."""
        failures = 0
        while not stop.is_set():
            try:
                with self._database.connect_sync(name="tidelock triggers") as connection:
                    connection.execute(f"LISTEN {_CHANNEL}")
                    while not stop.is_set():
                        self._turn(connection, stop)
                        failures = 0
            except Exception as error:
                # Nothing may end it: receivers would wait for ever. What is wrong is said, and not over and over.
                foreseen = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | Unreachable)
                if failures == 0 or not foreseen:
                    log.warning("triggers are held up: %s", error, exc_info=not foreseen)
                stop.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
            finally:
                self._close()

    def _turn(self, connection: psycopg.Connection[Any], stop: threading.Event) -> None:
        """Evaluate what there is, then wait for more."""
        if self._evaluation is None:
            if not leases.hold(connection, leases.TRIGGERS):
                # Another evaluates. Should it end, its lease ends with its connection.
                stop.wait(_POLL_S)
                return
            self._evaluation = Evaluation(connection, self._second, changes_max=self._changes_max)
        while not stop.is_set() and self._evaluation.step():
            pass
        looks = 0
        while looks < _POLL_S / _PATIENCE_S and not stop.is_set():
            looks += 1
            for _ in connection.notifies(timeout=_PATIENCE_S, stop_after=1):
                return

    def _second(self) -> psycopg.Connection[Any]:
        return self._database.connect_sync(name="tidelock triggers snapshot")

    def _close(self) -> None:
        self._counted = dict(self.transitions)
        self._evaluation = None
