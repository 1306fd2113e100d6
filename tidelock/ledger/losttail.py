"""A lost tail: commits that the anchor file has and the ledger no longer does.

Every process that writes the ledger checks for one before its first commit, because the next sequence would be one
already issued. Only a person can decide what to do: restore a backup, or accept the loss. That decision is a control
event, `accepted_loss`. It is above everything that may have been issued, and every later reader of the gap, from
`verify` to the lake, finds the reason there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psycopg

from tidelock.errors import Difference, SettingsError
from tidelock.instants import SECOND, parse_rfc3339
from tidelock.ledger.anchor import AnchorLine, BadAnchor, read_anchors
from tidelock.ledger.commit import Floor
from tidelock.ledger.sequencer import Sequencer
from tidelock.model import Head
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import database_errors

log = logging.getLogger(__name__)

QUERIES = load("tidelock.ledger", "sql/losttail.sql")

TYPE = "accepted_loss"
#: what may have been issued after the last line of the anchor file, which is at most one interval old
_EVENTS_PER_SECOND = 100_000


@dataclass(frozen=True, slots=True)
class LostTail:
    """What the anchor file proves."""

    path: Path
    #: where the ledger ends now
    head: Head
    #: the last line of the file
    anchored: AnchorLine
    #: readers ahead of the ledger, which a restored backup never has
    ahead: Mapping[str, int]

    @property
    def first_sequence(self) -> int:
        return self.head.ingress_sequence + 1

    @property
    def last_sequence(self) -> int:
        """The last one known to have been issued."""
        return max(self.anchored.ingress_sequence, *self.ahead.values(), 0)

    def refusal(self) -> Difference:
        line = self.anchored
        return Difference(
            f"the ledger's tail is gone: sequences {self.first_sequence} to {self.last_sequence} are missing. It ends "
            f"at commit {self.head.commit_id}, sequence {self.head.ingress_sequence}, but {self.path} has commit "
            f"{line.commit_id}, sequence {line.ingress_sequence}, written at {line.at}. Restore a Postgres backup that "
            "has them, or start `tidelock up` or `tidelock serve` once with --accept-lost-tail: it records the loss "
            "and continues above these sequences. If the file belongs to another ledger, set another file with "
            "`anchor`."
        )

    def floor(self, anchor_interval_ns: int) -> Floor:
        """What the next commit must be above, so that nothing is issued twice.

        After the last line was written, as many events may have been acknowledged as fit into the interval. A commit
        has at least one event, and a collection one source timestamp, so that bounds all three.
        """
        line = self.anchored
        sequence = self.last_sequence + max(1, anchor_interval_ns * _EVENTS_PER_SECOND // SECOND)
        beyond = sequence - line.ingress_sequence
        time = int(line.source_timestamp) if line.source_timestamp is not None else parse_rfc3339(line.at)
        return Floor(sequence, line.commit_id + beyond, time + beyond)

    def event(self) -> dict[str, Any]:
        """The data of the control event."""
        return {
            "type": TYPE,
            "firstSequence": self.first_sequence,
            "lastSequence": self.last_sequence,
            "firstCommit": self.head.commit_id + 1,
            "lastCommit": self.anchored.commit_id,
            "digest": self.anchored.digest,
            "anchoredAt": self.anchored.at,
        }


class Loss(NamedTuple):
    """A lost tail that was accepted."""

    first_sequence: int
    #: the last one known to have been issued
    last_sequence: int
    first_commit: int
    #: of the control event, which is next in the ledger
    sequence: int
    commit_id: int

    def has(self, sequence: int) -> bool:
        return self.first_sequence <= sequence < self.sequence

    def has_commit(self, commit_id: int) -> bool:
        return self.first_commit <= commit_id < self.commit_id

    def __str__(self) -> str:
        lost = f"sequences {self.first_sequence:,} to {self.last_sequence:,} are lost"
        return f"{lost}, as accepted at sequence {self.sequence:,}"


class _Said(msgspec.Struct, rename="camel"):
    first_sequence: int
    last_sequence: int
    first_commit: int
    last_commit: int


_said = msgspec.json.Decoder(_Said)
_type = msgspec.json.Decoder(dict[str, Any])


def loss_of(data: str | bytes, sequence: int, commit_id: int) -> Loss | None:
    """The loss recorded by a control event; None: it is another kind of event, or impossible."""
    try:
        if _type.decode(data).get("type") != TYPE:
            return None
        said = _said.decode(data)
    except msgspec.DecodeError:
        return None
    if said.last_sequence >= sequence or said.last_commit >= commit_id:
        return None
    return Loss(said.first_sequence, said.last_sequence, said.first_commit, sequence, commit_id)


def losses_of(rows: Iterable[Sequence[Any]]) -> list[Loss]:
    """From rows of the query `losses`."""
    return [loss for row in rows if (loss := loss_of(row[2], row[0], row[1])) is not None]


def read_losses(connection: psycopg.Connection[Any]) -> list[Loss]:
    """Every loss that was accepted, in order."""
    return losses_of(connection.execute(QUERIES["losses"]))


def loss_with(losses: Iterable[Loss], sequence: int) -> Loss | None:
    """The loss that contains a sequence."""
    return next((loss for loss in losses if loss.has(sequence)), None)


def held_of(losses: Sequence[Loss], count: int) -> str:
    """How the check of a store reports lost events that it holds."""
    spans = ", ".join(f"{loss.first_sequence:,} to {loss.last_sequence:,}" for loss in losses)
    return f"; and {count:,} that the ledger has lost, of sequences {spans}" if count else ""


async def find_lost_tail(database: Database, path: Path) -> LostTail | None:
    """The lost tail that the file proves. None: nothing is lost, or the file belongs to another ledger.

    One line that matches the ledger shows that the file belongs to it. If another line differs, a commit or a line was
    changed, which `verify` finds, and which must not hide a lost tail. Raises SettingsError if the file cannot be read.
    """
    try:
        # Before the head: a line is written after its commit, so a later read of the ledger finds that commit.
        lines = await asyncio.to_thread(read_anchors, path)
    except (BadAnchor, OSError) as error:
        message = f"{path} cannot be read, so a lost tail would go unnoticed: {error}. Repair it or move it away"
        raise SettingsError(f"{message}, or set another file with `anchor`.", field="anchor") from error
    if not lines:
        return None
    async with await database.connect(name="tidelock start") as connection:
        found = await (await connection.execute(QUERIES["head"])).fetchone()
        assert found is not None, "ledger_head always has its one row"
        head, last = Head(*found), max(lines, key=lambda line: line.commit_id)
        if last.commit_id <= head.commit_id:
            return None
        digests = {line.commit_id: line.digest for line in lines if line.commit_id <= head.commit_id}
        held = await (await connection.execute(QUERIES["digests"], [list(digests)])).fetchall()
        others = [commit_id for commit_id, digest in held if digest.hex() != digests[commit_id]]
        if others and len(others) == len(held):
            log.error("no line of %s matches the ledger: the anchor belongs to another ledger and proves nothing", path)
            return None
        for commit_id in others[:1]:
            log.error("%s: commit %d differs from the ledger's; see `tidelock verify`", path, commit_id)
        rows = await (await connection.execute(QUERIES["readers_ahead"])).fetchall()
    return LostTail(path, head, last, dict(rows))


async def refuse_lost_tail(database: Database, path: Path) -> None:
    """Raises Difference if the anchor file proves that the ledger's tail is gone.

    This runs at the start, so a dropped connection is re-established, as in everything that follows.
    """
    with database_errors("the ledger"):
        lost = await database.patience.insist(lambda: find_lost_tail(database, path))
    if lost is not None:
        raise lost.refusal()


async def accept(lost: LostTail, sequencer: Sequencer, anchor_interval_ns: int) -> None:
    """Record the loss, and continue above it. Raises Unreachable if the ledger was written meanwhile."""
    recorded = await sequencer.resume_above(lost.floor(anchor_interval_ns), lost.event(), lost.head)
    log.warning(
        "sequences %d to %d are lost; recorded as sequence %d; no sequence below it is issued again",
        lost.first_sequence, lost.last_sequence, recorded.ingress_sequence,
    )  # fmt: skip
    if "fold" in lost.ahead:
        log.warning("the tables contain lost events; `tidelock replay NAME` rebuilds them from the ledger")
