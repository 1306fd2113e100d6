"""The course of a reader: what it does next, decided without I/O and without a clock of its own.

Everything to the right of a log reads it from a named position on: the fold, the mirror, the loaders of stores, the
evaluator of triggers, webhook delivery, the live follower, the feed, the ticks, the news of API keys. What they share
is here, and in `loop`, which does what is decided:

- they listen for announcements and look by themselves now and then (`poll_s`), because an announcement may be lost
  with its connection; what is announced while they work is heard, and makes them look once more;
- they open at a durable position, and begin there again after any failure, with nothing half done;
- while another process does the work they stand by, and ask for the lease again and again;
- when a step fails they pause, longer each time, and say once what they wait for.

Where they differ is the argument or the method of each: whether there is a lease (the fold, the mirror, the evaluator,
each store), whether the turn uses the connection that listens (evaluator, ticks, keys) or others (fold, follower),
what soon means (a tick is due at a moment, a store is loaded at intervals, brokers acknowledge meanwhile), and whether
a defect ends them (the fold and the loader, after some attempts) or must not (what runs in a server).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

import psycopg

from tidelock.errors import CursorMoved, SettingsError, Unreachable

#: how long the first pause is; each is twice as long as the one before
PAUSE_S = 0.1
#: the longest, where a service does not say otherwise
PAUSE_MAX_S = 10.0
#: how often one that stands by asks whether it may work
STAND_BY_S = 0.25


class Failure(Enum):
    """What a failure means for the next step."""

    #: retrying does not fix it
    FATAL = auto()
    #: begin again at once: another process has moved the cursor, or what was lost is replaced
    AGAIN = auto()
    #: another process asks for the work: give up the lease, with the connection
    YIELDED = auto()
    #: something that is needed is away, and may come back
    AWAY = auto()
    #: nothing that was foreseen
    DEFECT = auto()


def failure_of(error: BaseException) -> Failure:
    """What an error means, by its type."""
    match error:
        case SettingsError():
            return Failure.FATAL
        case CursorMoved():
            return Failure.AGAIN
        case Unreachable() | psycopg.OperationalError() | psycopg.InterfaceError() | TimeoutError():
            return Failure.AWAY
    return Failure.DEFECT


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn came to."""

    #: the next one is due after this time, or earlier if something is heard; None: at the next poll
    due_s: float | None = None
    #: nothing is done for this time, whatever is heard
    pause_s: float = 0.0
    #: something was completed, or there was nothing to do: earlier failures are over
    healthy: bool = True


#: there is more to do
MORE = Turn(due_s=0.0)
#: everything is done
IDLE = Turn()


class Do(Enum):
    """What a reader may have to do."""

    #: get the connection that listens
    CONNECT = auto()
    #: take the lease, and find the position
    OPEN = auto()
    #: go on from the position
    TURN = auto()
    #: wait for an announcement
    WAIT = auto()
    #: wait, whatever is announced
    PAUSE = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """What to do, and of waiting how long at most."""

    do: Do
    seconds: float = 0.0


class Course:
    """Decides what a reader does next, from what happened. Times are seconds of any one clock."""

    def __init__(self, *, poll_s: float, pause_max_s: float = PAUSE_MAX_S, connected: bool = False) -> None:
        """`connected`: there is no connection that it needs."""
        self._poll_s = poll_s
        self._pause_max_s = pause_max_s
        self._connected = connected
        self._open = False
        self._heard = False
        self._due = self._not_before = self._last = -math.inf
        #: in a row, of any kind
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """It is the one that works, at a position that it knows."""
        return self._open

    def next(self, now: float) -> Action:
        """What to do at this time."""
        if now < self._last:
            # The clock was set back: what was to come in a second comes in a second.
            self._due -= self._last - now
            self._not_before -= self._last - now
        self._last = now
        if now < self._not_before:
            return Action(Do.PAUSE, self._not_before - now)
        if not self._connected:
            return Action(Do.CONNECT)
        if not self._open:
            return Action(Do.OPEN)
        if self._heard or now >= self._due:
            return Action(Do.TURN)
        return Action(Do.WAIT, self._due - now)

    def connected(self) -> None:
        """The connection is there, and listens."""
        self._connected = True

    def disconnected(self) -> None:
        """The connection is gone, and every lease with it."""
        self._connected = self._open = False

    def opened(self) -> None:
        """It has the lease, and its position: the first turn is due."""
        self._open, self._due = True, -math.inf

    def stands_by(self, now: float) -> None:
        """Another process does the work."""
        self._not_before = now + min(self._poll_s, STAND_BY_S)
        self.failures = 0

    def heard(self) -> None:
        """Something was announced."""
        self._heard = True

    def turning(self) -> None:
        """A turn begins. It sees what was announced before; what is announced from now on may be for the next."""
        self._heard = False

    def turned(self, turn: Turn, now: float) -> None:
        """A turn has ended."""
        self._due = now + (self._poll_s if turn.due_s is None else turn.due_s)
        if turn.pause_s > 0:
            self._not_before = now + turn.pause_s
        if turn.healthy:
            self.failures = 0

    def failed(self, failure: Failure, now: float) -> None:
        """A step failed, and nothing half done is left."""
        self._open = False
        if failure in (Failure.AWAY, Failure.DEFECT):
            self.failures += 1
            # The exponent has a bound of its own: a power of two has none.
            self._not_before = now + min(self._pause_max_s, PAUSE_S * 2 ** min(self.failures - 1, 20))
