"""What a reader does next, with a clock that is passed in: no test here waits, and none asks a database."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tidelock.errors import CursorMoved, Difference, SettingsError, Unreachable
from tidelock.postgres.course import IDLE, MORE, Action, Course, Do, Failure, Turn, failure_of
from tidelock.postgres.database import Database
from tidelock.postgres.listener import Listener
from tidelock.postgres.loop import Reader, ReaderLoop, Saying
from tidelock.postgres.reconnect import Away

POLL_S = 2.0


def opened(now: float = 0.0, **options: Any) -> Course:
    course = Course(poll_s=POLL_S, **options)
    course.connected()
    course.opened()
    assert course.next(now) == Action(Do.TURN)
    return course


def idle(now: float = 0.0) -> Course:
    course = opened(now)
    course.turning()
    course.turned(IDLE, now)
    return course


def test_it_connects_opens_turns_and_waits_for_the_poll_at_most() -> None:
    course = Course(poll_s=POLL_S)
    assert course.next(0).do is Do.CONNECT
    course.connected()
    assert course.next(0).do is Do.OPEN
    course.opened()
    for _ in range(3):
        assert course.next(0).do is Do.TURN
        course.turning()
        course.turned(MORE, 0)
    course.turned(IDLE, 0)
    assert course.next(0.5) == Action(Do.WAIT, 1.5)
    assert course.next(2.0).do is Do.TURN, "an announcement may have been lost"


def test_what_is_announced_during_a_turn_is_for_the_next_and_what_was_before_it_is_not() -> None:
    course = opened()
    course.heard()
    course.turning()
    course.turned(IDLE, 0)
    assert course.next(0).do is Do.WAIT
    course.turning()
    course.heard()
    course.turned(IDLE, 0)
    assert course.next(0).do is Do.TURN


def test_what_is_announced_during_a_pause_is_remembered_and_ends_no_pause() -> None:
    course = opened()
    course.turning()
    course.turned(Turn(pause_s=1.0), 0)
    course.heard()
    assert course.next(0.5) == Action(Do.PAUSE, 0.5)
    assert course.next(1.0).do is Do.TURN


def test_pauses_double_up_to_a_limit_and_begin_again_after_a_turn_that_worked() -> None:
    course, now, pauses = Course(poll_s=POLL_S, pause_max_s=1.0), 0.0, []
    for _ in range(6):
        course.failed(Failure.AWAY, now)
        pauses.append(round(course.next(now).seconds, 3))
        now += pauses[-1]
        assert course.next(now).do is Do.CONNECT
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    course.connected()
    course.opened()
    course.turned(Turn(healthy=False), now)
    assert course.failures == 6, "waiting for something is no success"
    course.turned(IDLE, now)
    course.failed(Failure.DEFECT, now)
    assert course.failures == 1
    assert course.next(now).seconds == pytest.approx(0.1)


def test_a_year_of_failures_is_no_number_too_large() -> None:
    course = Course(poll_s=POLL_S)
    course.failures = 3_000_000
    course.failed(Failure.AWAY, 0)
    assert course.next(0) == Action(Do.PAUSE, 10.0)


def test_one_whose_cursor_was_moved_opens_again_at_once_and_over_the_same_connection() -> None:
    course = opened()
    course.failed(Failure.AGAIN, 0)
    assert course.next(0).do is Do.OPEN
    assert course.failures == 0


def test_one_on_standby_asks_for_the_lease_again_and_not_at_every_announcement() -> None:
    course = Course(poll_s=POLL_S)
    course.connected()
    course.stands_by(0)
    course.heard()
    assert course.next(0) == Action(Do.PAUSE, 0.25)
    assert course.next(0.25).do is Do.OPEN


def test_a_lost_connection_costs_the_lease_wherever_it_is_lost() -> None:
    for course in (opened(), idle()):
        course.disconnected()
        assert course.next(0).do is Do.CONNECT
        course.connected()
        assert course.next(0).do is Do.OPEN


@pytest.mark.parametrize("jump", [-(10.0**9), 10.0**9])
def test_a_clock_that_jumps_neither_hangs_nor_hurries_a_reader(jump: float) -> None:
    course = idle(now=100.0)
    assert course.next(101.0) == Action(Do.WAIT, 1.0)
    if jump > 0:
        assert course.next(101.0 + jump).do is Do.TURN
    else:
        assert course.next(101.0 + jump) == Action(Do.WAIT, 1.0), "what was to come in a second comes in a second"
        assert course.next(102.0 + jump).do is Do.TURN
    course.failed(Failure.AWAY, 101.0 + jump)
    assert course.next(101.0 + jump).seconds <= 0.1 + 1e-6


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (SettingsError("x"), Failure.FATAL),
        (CursorMoved("x"), Failure.AGAIN),
        (Away("x"), Failure.AWAY),
        (Unreachable("x"), Failure.AWAY),
        (psycopg.errors.AdminShutdown("x"), Failure.AWAY),
        (psycopg.InterfaceError("x"), Failure.AWAY),
        (TimeoutError(), Failure.AWAY),
        (psycopg.errors.UndefinedTable("x"), Failure.DEFECT),
        (Difference("x"), Failure.DEFECT),
        # Words that a database might have used do not make an outage.
        (ValueError("the connection to Postgres was lost"), Failure.DEFECT),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_are_distinguished_by_their_type(error: Exception, failure: Failure) -> None:
    assert failure_of(error) is failure


class World:
    """Time that passes only while somebody waits, and a database that is away for some of it."""

    def __init__(self, away_s: float) -> None:
        self.now = 0.0
        self.back_s = away_s
        self.connects: list[float] = []
        self.on_wait: Callable[[], object] = lambda: None

    def connect_sync(self, *, name: str) -> Any:
        self.connects.append(self.now)
        raise Away(f"{name}: away") if self.now < self.back_s else _Back

    def pause(self, _: threading.Event, seconds: float) -> None:
        self.now += seconds
        self.on_wait()


class _Back(Exception):
    """The database is there again: what comes then is tried on a real one."""


class Patient(Reader):
    def __init__(self, said: list[str]) -> None:
        self.left = 0
        self._saying = Saying(said.append)

    def leave(self) -> None:
        self.left += 1

    def failed(self, error: Exception) -> Failure:
        if isinstance(error, _Back):
            raise error
        self._saying.once("database", str(error))
        return super().failed(error)


@pytest.mark.parametrize(("away_s", "attempts"), [(3.0, 6), (600.0, 67)])
def test_a_database_that_is_gone_is_retried_ever_more_rarely_and_reported_once(away_s: float, attempts: int) -> None:
    world, said = World(away_s), list[str]()
    reader = Patient(said)
    loop = ReaderLoop(
        cast(Database, world), [reader], name="test", channels=(), clock=lambda: world.now, pause=world.pause
    )
    with pytest.raises(_Back):
        loop.run(threading.Event())
    assert said == ["test: away"]
    assert len(world.connects) == attempts
    assert world.connects[-1] - away_s <= 10.0, "it is found soon after it is back"
    gaps = [later - earlier for earlier, later in zip(world.connects, world.connects[1:], strict=False)]
    assert all(gap <= 10.0 + 1e-6 for gap in gaps)


def test_one_that_waits_for_a_database_stops_when_it_is_told_to() -> None:
    stop, world, said = threading.Event(), World(10.0**9), list[str]()
    world.on_wait = lambda: stop.set() if world.now > 60 else None
    reader = Patient(said)
    ReaderLoop(
        cast(Database, world), [reader], name="test", channels=(), clock=lambda: world.now, pause=world.pause
    ).run(stop)
    assert world.now < 61
    assert reader.left


def test_one_reader_that_pauses_holds_up_no_other() -> None:
    """Two readers of one loop: the first fails for ever, the second has its turns."""
    turns: list[str] = []

    class Bad(Patient):
        def open(self, connection: object) -> bool:
            raise Unreachable("its store is away")

    class Good(Patient):
        def open(self, connection: object) -> bool:
            return True

        def turn(self) -> Turn:
            turns.append("good")
            return MORE

    made = SimpleNamespace(connect_sync=lambda name: _Silent())
    said: list[str] = []
    ReaderLoop(cast(Database, made), [Bad(said), Good(said)], name="test", channels=()).run(
        threading.Event(), done=lambda: len(turns) >= 100
    )
    assert said == ["its store is away"]


def test_an_announcement_that_the_driver_has_read_already_is_heard_although_no_socket_says_so() -> None:
    connection, heard = _Silent(), list[str]()
    kept = [SimpleNamespace(relname=b"channel", extra=b"payload", be_pid=1)]
    connection.pgconn = SimpleNamespace(notifies=lambda: kept.pop() if kept else None)
    listener = Listener(cast(Any, connection), lambda notification: heard.append(notification.payload))
    listener.read()
    assert heard == ["payload"]
    connection.close()


class _Silent:
    """A connection on which nothing is ever announced."""

    closed = False
    info = SimpleNamespace(transaction_status=psycopg.pq.TransactionStatus.IDLE, encoding="utf-8")
    pgconn = SimpleNamespace(notifies=lambda: None)

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self.fileno = lambda: reading

    def add_notify_handler(self, _: object) -> None:
        pass

    def close(self) -> None:

        for end in (self.fileno(), self._writing):
            os.close(end)
