"""Replays: what a trigger has told over a range of the ledger, found again from the changes that are kept.

Ids, bodies and order are functions of the ledger, so they come out the same. Nothing is sent here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelock.changes.reader import read_changes
from tidelock.errors import NotFound, ResumeExpired, Unreachable
from tidelock.instants import format_instant
from tidelock.ledger.queries import load
from tidelock.triggers.bodies import Bodies
from tidelock.triggers.definition import Trigger, read_event
from tidelock.triggers.evaluation import ControlEvent
from tidelock.triggers.outbox import Transition
from tidelock.triggers.pasts import matching_at
from tidelock.triggers.watches import Crossing, Watch, remembered, whole

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")


@dataclass(frozen=True, slots=True)
class _Span:
    """Source timestamps from one to another, both included."""

    first: int
    last: int


def replayed(connection: psycopg.Connection[Any], name: str, first: int, last: int) -> Iterator[Transition]:
    """The transitions of a trigger that events from one sequence to another have made, in their order.

    To be used in `pasts.one_moment`. Raises NotFound, and Unreachable when what it takes is not kept any more.
    """
    history = _history(connection, name, last)
    span = _span(connection, first, last)
    if span is None:
        return
    bodies = Bodies(connection)
    row = connection.execute(QUERIES["trigger_id"], {"name": name}).fetchone()
    trigger_id = 0 if row is None else row[0]
    for event, following in zip(history, [*history[1:], None], strict=True):
        said = event.said
        until = span.last if following is None else min(span.last, following.source_timestamp - 1)
        if not isinstance(said, Trigger) or not said.enabled or until < span.first:
            continue
        try:
            for crossing in _crossings(connection, Watch(said, trigger_id), event, _Span(span.first, until)):
                yield bodies.transition(crossing)
        except ResumeExpired:
            raise Unreachable(_missing(said, event, span)) from None


def _crossings(
    connection: psycopg.Connection[Any], watch: Watch, event: ControlEvent, span: _Span
) -> Iterator[Crossing]:
    """What a trigger told while it was as one control event says."""
    trigger, members = watch.trigger, set[str]()
    after = max(event.source_timestamp, span.first - 1)
    told = trigger.snapshot and event.source_timestamp >= span.first
    if watch.leaving is not None or told:
        for key, row in matching_at(connection, watch, event.sequence):
            if watch.leaving is not None:
                members.add(key)
            if told:
                yield Crossing(watch, "MATCH", event.source_timestamp, key, row)
    if watch.leaving is not None:
        # Who is in now depends on everything since the beginning.
        after = event.source_timestamp
    for change in read_changes(connection, after=after, through=span.last, tables=[trigger.table]):
        if change.tenant_id != trigger.tenant_id:
            continue
        if watch.leaving is None:
            old = whole(change.old, change.tenant_id)
            member = old is not None and watch.matches(old)
        else:
            member = change.key in members
        crossing = remembered(watch, member, change)
        if crossing is not None:
            (members.add if crossing.event_type == "MATCH" else members.discard)(change.key)
            if crossing.source_timestamp >= span.first:
                yield crossing


def _history(connection: psycopg.Connection[Any], name: str, through: int) -> Sequence[ControlEvent]:
    rows = connection.execute(QUERIES["history"], {"name": name, "through": through}).fetchall()
    if not rows:
        raise NotFound(f"the ledger knows no trigger {name} up to sequence {through}")
    return [ControlEvent(sequence, time, read_event(json.loads(data))) for sequence, time, data in rows]


def _span(connection: psycopg.Connection[Any], first: int, last: int) -> _Span | None:
    """The range in time; None: there is no event in it."""
    row = connection.execute(QUERIES["times"], {"first": first, "last": last}).fetchone()
    assert row is not None, "this query always has a row"
    if row[0] is None or row[1] is None or row[0] > row[1]:
        return None
    return _Span(row[0], row[1])


def _missing(trigger: Trigger, event: ControlEvent, span: _Span) -> str:
    since = max(event.source_timestamp, span.first) if trigger.unmatch is None else event.source_timestamp
    why = "" if trigger.unmatch is None else "; with `unmatch`, who is in depends on all changes since it was made"
    return (
        f"the changes of {trigger.table} since {format_instant(since)} are needed, and some of them are not kept any "
        f"more (setting changes_retention){why}. Choose a later range."
    )
