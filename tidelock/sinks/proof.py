"""Proof of a store: it holds the ledger's events, all of them, once, in the ledger's order, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.columns import STRING
from tidelock.fold.store import Store
from tidelock.ledger.findings import Check, Findings
from tidelock.ledger.losttail import Loss, held_of
from tidelock.sections import number_of
from tidelock.sinks.columns import LEDGER, SEQUENCE, conformed, select_sql
from tidelock.sinks.lakereader import Damaged
from tidelock.sinks.source import QUERIES, losses_in
from tidelock.where.sql import literal

_PAGE_EVENTS_MIN, _PAGE_EVENTS_MAX = 100, 50_000
#: approximate size of a page of the ledger: events may be large
_PAGE_BYTES = 64 * 2**20
_GROWTH = 10
_SHOWN_MAX = 80
_COMPARED = [column.name for column in LEDGER]

#: called with the sequence that is reached and the one to reach
Progress = Callable[[int, int], None]


class Copy(Protocol):
    """A store that can be read."""

    @property
    def name(self) -> str: ...

    def rows(self, lo: int, hi: int) -> pa.Table:
        """The events above `lo` through `hi`, in the store's order."""

    def last(self) -> tuple[int, int] | None:
        """Sequence and commit of its last event."""

    def strays(self) -> list[str]:
        """Rows that readers would include but that belong to no range, described with a remedy."""


class StoreProof:
    """Compares a store with the ledger, page by page."""

    def __init__(self, store: Store, copy: Copy) -> None:
        self.findings = Findings(copy.name)
        self._store = store
        self._copy = copy
        self._events = 0
        #: tails of the ledger whose loss was accepted, and how many of their events the store has
        self._losses: list[Loss] = []
        self._lost = 0

    def compare(self, progress: Progress) -> None:
        # The cursor first: everything up to it stays there.
        found = self._store.query(QUERIES.text("position").format(name=literal(STRING, self._copy.name)))
        through = int(found["sequence"][0].as_py()) if found.num_rows else 0
        self._losses = losses_in(self._store)
        lo, size = 0, _PAGE_EVENTS_MIN
        while lo < through:
            hi = self._number("frontier", lo=lo, events_max=size, through=through)
            if hi is None:
                # The ledger ends before the store does.
                break
            page = self._page(lo, hi)
            fit = page.num_rows * _PAGE_BYTES // max(page.nbytes, 1)
            size = max(_PAGE_EVENTS_MIN, min(fit, _GROWTH * size, _PAGE_EVENTS_MAX))
            lo = hi
            progress(lo, through)
        self._beyond(lo)
        self._store.rollback()
        for what in self._copy.strays():
            self.findings.differ(0, what)

    def check(self) -> Check:
        same = f"the same {number_of(self._events, 'event')} in the same order, with the same commit digests"
        return self.findings.check(same + held_of(self._losses, self._lost))

    def _page(self, lo: int, hi: int) -> pa.Table:
        """Compare a range; returns the ledger's events of it."""
        sql = f"{select_sql(LEDGER, exact=True)} WHERE {SEQUENCE} > {lo} AND {SEQUENCE} <= {hi} ORDER BY {SEQUENCE}"
        wanted = conformed(self._store.query(sql), LEDGER)
        self._store.rollback()
        self._events += wanted.num_rows
        try:
            found = self._without_lost(self._copy.rows(lo, hi).select(_COMPARED))
        except Damaged as damage:
            self._differ(max(lo + 1, damage.span.first), str(damage))
            return wanted
        if not found.equals(wanted) and not (found := _completed(found, wanted)).equals(wanted):
            for sequence, what in differences(wanted, found):
                self._differ(sequence, what)
        return wanted

    def _without_lost(self, rows: pa.Table) -> pa.Table:
        """Events of a lost tail in a store are not a difference: they may be the last copy."""
        for loss in self._losses:
            inside = pc.and_(
                pc.greater_equal(rows[SEQUENCE], loss.first_sequence), pc.less(rows[SEQUENCE], loss.sequence)
            )
            kept = rows.filter(pc.invert(inside))
            self._lost, rows = self._lost + rows.num_rows - kept.num_rows, kept
        return rows

    def _beyond(self, through: int) -> None:
        """Events beyond the cursor come from an unfinished step; beyond the ledger they prove a lost tail."""
        try:
            last = self._copy.last()
        except Damaged:
            return
        head = self._store.query(QUERIES.text("head")).to_pylist()[0]
        if last is None or last[0] <= through:
            return
        if last[0] > head["ingress_sequence"]:
            ends = f"the ledger ends at commit {head['commit_id']}, sequence {head['ingress_sequence']}"
            had = f"the {self._copy.name} has sequence {last[0]} of commit {last[1]}"
            self.findings.differ(head["ingress_sequence"] + 1, f"the ledger's tail was cut off: {had}; {ends}")

    def _differ(self, sequence: int, what: str) -> None:
        self.findings.differ(sequence, f"{what}; `tidelock load {self._copy.name} --from {sequence}` repairs it")

    def _number(self, query: str, **parameters: int) -> int | None:
        found = self._store.query(QUERIES.text(query).format(**parameters))
        number = found["sequence"][0].as_py() if found.num_rows else None
        return None if number is None else int(number)


def _completed(found: pa.Table, wanted: pa.Table) -> pa.Table:
    """What a store holds, with the ledger's `key_source` where it has none of an event of the first form.

    It was loaded before stores had the column. Events of the second form have a row digest and every column.
    """
    events = pc.index_in(found[SEQUENCE], value_set=wanted[SEQUENCE])
    digests, sources = wanted["row_digest"].take(events), wanted["key_source"].take(events)
    earlier = pc.and_(pc.is_null(found["key_source"]), pc.is_null(digests))
    at = found.column_names.index("key_source")
    return found.set_column(at, found.schema.field(at), pc.if_else(earlier, sources, found["key_source"]))


def differences(wanted: pa.Table, found: pa.Table) -> Iterator[tuple[int, str]]:
    """A difference between store and ledger, by sequence and described."""
    original = {row[SEQUENCE]: row for row in wanted.to_pylist()}
    seen: set[int] = set()
    before = 0
    for row in found.to_pylist():
        sequence = row[SEQUENCE]
        if sequence in seen:
            yield sequence, f"sequence {sequence} is there twice"
            continue
        if sequence < before:
            yield sequence, f"sequence {sequence} comes after {before}"
        seen.add(sequence)
        before = max(before, sequence)
        if sequence not in original:
            yield sequence, f"sequence {sequence} is not in the ledger"
        elif row != original[sequence]:
            name = next(name for name, value in original[sequence].items() if row[name] != value)
            has, had = _shown(row[name]), _shown(original[sequence][name])
            yield sequence, f"sequence {sequence}: `{name}` is {has}, the ledger has {had}"
    for sequence in sorted(original.keys() - seen):
        yield sequence, f"sequence {sequence} is missing"


def _shown(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
