"""The outcome of a backfill: how many rows went which way, and which are not in the ledger as they should be."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tidelock.model import Accepted, Conflict, Duplicate, Rejected, Verdict


class RowProblem(msgspec.Struct, frozen=True, rename="camel"):
    """A row that could not be recorded, or is recorded with other content."""

    #: in the order of the backfill; 0: it has no place there
    row: int
    id: str | None
    #: as the ledger answered
    verdict: msgspec.Raw

    @classmethod
    def of(cls, row: int, row_id: str | None, verdict: Rejected | Conflict) -> RowProblem:
        return cls(row, row_id, msgspec.Raw(msgspec.json.encode(verdict)))

    @property
    def told(self) -> str:
        """In one line, for people."""
        found = msgspec.json.decode(self.verdict)
        if found["status"] == "rejected":
            return f"{found['error']['code']}  {found['error']['message']}"
        sequence, key = found["ingressSequence"], found["idempotencyKey"]
        return f"conflict  key {key} is recorded with other content as sequence {sequence}"


@dataclass(slots=True)
class Counts:
    """What became of rows."""

    rows: int = 0
    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0

    def add(self, verdicts: list[Verdict]) -> None:
        self.rows += len(verdicts)
        for verdict in verdicts:
            if isinstance(verdict, Accepted):
                self.accepted += 1
            elif isinstance(verdict, Duplicate):
                self.duplicates += 1
            elif isinstance(verdict, Conflict):
                self.conflicts += 1
            else:
                self.rejected += 1


@dataclass(slots=True)
class Backfilled:
    """The report of a run."""

    #: of this run, and of all runs of the same backfill
    counts: Counts = field(default_factory=Counts)
    total: Counts = field(default_factory=Counts)
    #: rows that earlier runs had dealt with
    resumed_after: int = 0
    #: rows that have no place in the order, for want of received_at or id
    unplaced: int = 0
    #: rows that were added to the older table behind the place that was reached
    behind: int = 0
    finished: bool = False
    #: the first of them
    problems: list[RowProblem] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Every row of the table is in the ledger, as the table has it."""
        found = self.total
        return self.finished and not (found.conflicts or found.rejected or self.unplaced or self.behind)
