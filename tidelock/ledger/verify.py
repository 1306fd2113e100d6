"""Verification: whether the ledger still is what was recorded, column by column, row by row, to its end.

It reads up to the head as of its start, in pages: writers continue meanwhile, and memory stays small. Three further
proofs: every event with a key has exactly its own identity, every correction is noted with its target, and every
anchored commit is still there. The identities are compared by the database, which is sent what must be there and
returns what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple

import psycopg

from tidelock.ingest.identity import identity_digest
from tidelock.ledger.anchor import AnchorLine, BadAnchor, read_anchors
from tidelock.ledger.commit import CHAIN_FORM, chain_digest
from tidelock.ledger.findings import Check, Findings, Report, first_difference
from tidelock.ledger.losttail import Loss, loss_of
from tidelock.ledger.rows import (
    Numbers,
    first_form,
    numeric_text,
    raw_rows,
    row_digests,
    row_numbers,
    row_tail,
    sent_of,
)
from tidelock.model import CONTROL, Head
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import database_errors
from tidelock.sections import number_of

QUERIES = load("tidelock.ledger", "sql/verify.sql")
LEDGER = load("tidelock.ledger", "sql/ledger.sql")

_COMMITS_PAGE = 10_000
_CONTROL = CONTROL.encode()
#: where the data, and what an event corrects, are in the tail of a row
_DATA, _TARGET, _TARGET_SEQUENCE = 7, 15, 16

#: called with the sequence reached and the one to reach
Progress = Callable[[int, int], None]

_IDENTITIES_PAGE = _CORRECTIONS_PAGE = 10_000
# Lookups by the primary key, page after page; the planner, which sees one page, would read the whole table for each.
_SESSION = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off"
_record = Struct("!16sq32sc")


class Link(NamedTuple):
    """A commit as recorded: one link of the chain."""

    commit_id: int
    first: int
    last: int
    source_timestamp: int
    control: bool
    digest: bytes
    #: numbers skipped so far
    skipped: int
    #: what its digest covers
    form: int

    def __str__(self) -> str:
        span = f"sequence {self.first}" if self.first == self.last else f"sequences {self.first} to {self.last}"
        return f"commit {self.commit_id} ({span})"


_BEFORE_FIRST = Link(
    commit_id=0, first=0, last=0, source_timestamp=0, control=False, digest=bytes(32), skipped=0, form=1
)


class VerifyResult(NamedTuple):
    """What `verify` found."""

    report: Report
    #: the first difference in the ledger
    first: str | None


def verify(database: Database, anchor: Path, progress: Progress) -> VerifyResult:
    """Check everything."""
    anchors = AnchorProof(anchor)
    with (
        database_errors("verify"),
        database.connect_sync(name="tidelock verify") as connection,
        database.connect_sync(name="tidelock verify rows") as rows,
        database.connect_sync(name="tidelock verify identities") as identities,
        IdentityProof(identities) as identity_proof,
    ):
        walk = _Walk(connection, identity_proof)
        with closing(raw_rows(rows, walk.head.ingress_sequence)) as recorded:
            walk.go(recorded, progress)
        anchors.compare(connection, walk.head, walk.losses)
    checks = [*walk.checks(), identity_proof.check(), walk.corrections.check(), anchors.check()]
    # At one place, the check that names a row says more than the one that names a commit.
    by_precision = [walk.content, walk.density, identity_proof.findings, walk.corrections.findings, walk.order]
    by_precision += [walk.chain, anchors.findings]
    return VerifyResult(Report.of(checks), first_difference(by_precision))


class _Walk:
    """One walk along the ledger, commit by commit."""

    def __init__(self, connection: psycopg.Connection[Any], identities: IdentityProof) -> None:
        self.chain = Findings("chain")
        self.density = Findings("density")
        self.order = Findings("order")
        self.content = Findings("content")
        self._connection = connection
        self._identities = identities
        self.corrections = CorrectionProof(connection)
        self._commits = self._events = 0
        #: lost tails whose loss was accepted
        self.losses: list[Loss] = []
        row = connection.execute(LEDGER["read_head"]).fetchone()
        assert row is not None, "ledger_head always has its one row"
        self.head = Head(*row)

    def checks(self) -> list[Check]:
        return [
            self.chain.check(f"commits 1 to {self._commits:,} give the head's digest {self.head.digest.hex()[:16]}..."),
            self.density.check(f"no event missing up to sequence {self.head.ingress_sequence:,}{self._left_out()}"),
            self.order.check("source timestamps increase from commit to commit and never go backwards"),
            self.content.check(f"each event has the content it was hashed with: {self._events:,} in all"),
        ]

    def _left_out(self) -> str:
        left_out = f"; {self.head.skipped:,} numbers were left out" if self.head.skipped else ""
        return left_out + "".join(f"; {loss}" for loss in self.losses)

    def go(self, rows: Iterator[bytes], progress: Progress) -> None:
        previous = _BEFORE_FIRST
        numbered = ((row_numbers(row), row) for row in rows)
        pending = next(numbered, None)
        for link in self._links():
            own: list[tuple[Numbers, bytes]] = []
            while pending is not None and pending[0][0] <= link.last:
                own.append(pending)
                pending = next(numbered, None)
            self._check_commit(previous, link, own)
            previous = link
            progress(link.last, self.head.ingress_sequence)
        while pending is not None:
            (sequence, _, _, received_at, occurred_at), row = pending
            self.density.differ(sequence, f"sequence {sequence} belongs to no commit")
            self._check_row(row_tail(row), sequence, received_at, occurred_at)
            pending = next(numbered, None)
        self._check_head(previous)
        self._identities.finish(self.head.ingress_sequence)
        self.corrections.finish(self.head.ingress_sequence)

    def _links(self) -> Iterator[Link]:
        after = -(2**63)
        while True:
            cursor = self._connection.execute(QUERIES["commits"], [after, self.head.commit_id, _COMMITS_PAGE])
            page = cursor.fetchall()
            yield from map(Link._make, page)
            if len(page) < _COMMITS_PAGE:
                return
            after = page[-1][0]

    def _check_commit(self, previous: Link, link: Link, rows: list[tuple[Numbers, bytes]]) -> None:
        self._commits += 1
        self._events += len(rows)
        resumed = link.control and len(rows) == 1 and self._resumes(previous, link, rows[0][1])
        self._check_density(previous, link, [found for found, _ in rows], resumed=resumed)
        self._check_order(previous, link, [found[2] for found, _ in rows])
        control = False
        for (sequence, _, _, received_at, occurred_at), row in rows:
            control |= self._check_row(row_tail(row), sequence, received_at, occurred_at)
        if link.control != control or (control and len(rows) != 1):
            self.order.differ(link.first, f"{link}: a control event must be alone in a commit marked as such")
        if chain_digest(previous.digest, link.commit_id, list(self._covered(link, rows))) != link.digest:
            what = "its rows do not match its digest: one of them, or the previous commit, was changed"
            self.chain.differ(link.last, f"{link}: {what}")

    def _covered(self, link: Link, rows: list[tuple[Numbers, bytes]]) -> Iterator[bytes]:
        """What the commit's digest covers of each row; in the second form a changed row is named."""
        for numbers, row in rows:
            if link.form != CHAIN_FORM:
                yield first_form(row)
                continue
            actual, stored = row_digests(row)
            if actual != stored:
                self.chain.differ(numbers[0], f"sequence {numbers[0]}: its columns do not match its row digest")
            yield stored or b""

    def _resumes(self, previous: Link, link: Link, row: bytes) -> bool:
        """Whether the commit accepts the loss of everything between the previous one and itself."""
        loss = loss_of(row_tail(row)[_DATA] or b"", link.first, link.commit_id)
        if loss is None or (loss.first_commit, loss.first_sequence) != (previous.commit_id + 1, previous.last + 1):
            return False
        self.losses.append(loss)
        return True

    def _check_density(self, previous: Link, link: Link, numbered: list[Numbers], *, resumed: bool) -> None:
        if link.commit_id != previous.commit_id + 1 and not resumed:
            missing = f"commit {previous.commit_id + 1} is missing: {link} comes after {previous.commit_id}"
            self.density.differ(previous.last + 1, missing)
        elif link.first - previous.last - 1 != link.skipped - previous.skipped:
            # A sequence database may have skipped numbers between two commits; the second one records how many.
            left_out = link.skipped - previous.skipped
            so = f", and says that {left_out} numbers were skipped" if left_out else ""
            self.density.differ(link.first, f"{link} does not start after sequence {previous.last}{so}")
        elif link.skipped < previous.skipped:
            self.density.differ(link.first, f"{link} starts before {previous} ends")
        sequences = [found[0] for found in numbered]
        if sequences != list(range(link.first, link.last + 1)):
            self._name_missing(link, sequences)
        for sequence, commit_id, *_ in numbered:
            if commit_id != link.commit_id:
                self.density.differ(sequence, f"sequence {sequence} says commit {commit_id}, but is in {link}")

    def _name_missing(self, link: Link, sequences: list[int]) -> None:
        for sequence in sorted(set(sequences).symmetric_difference(range(link.first, link.last + 1))):
            wrong = "is missing from" if link.first <= sequence else "lies before"
            self.density.differ(sequence, f"sequence {sequence} {wrong} {link}")

    def _check_order(self, previous: Link, link: Link, timestamps: list[int]) -> None:
        if not timestamps:
            return
        if timestamps[0] <= previous.source_timestamp:
            before = f"{previous.source_timestamp}, the last of commit {previous.commit_id}"
            self.order.differ(link.first, f"{link}: source timestamp {timestamps[0]} is not after {before}")
        if timestamps != sorted(timestamps):
            self.order.differ(link.first, f"{link}: source timestamps go backwards")
        if timestamps[-1] != link.source_timestamp:
            ends = f"ends at {timestamps[-1]}, but the commit says {link.source_timestamp}"
            self.order.differ(link.last, f"{link}: source timestamp {ends}")

    def _check_row(self, fields: list[Any], sequence: int, received_at: int, occurred_at: int) -> bool:
        """Compare an event with its hash and request its identity; returns whether it is a control event."""
        tenant_id, key, key_source, stored = fields[0].decode(), fields[12], fields[13], fields[14]
        if key is not None and key_source is not None:
            self._identities.expect(sequence, identity_digest(tenant_id, key.decode()), stored, key_source)
        elif key is not key_source:
            self._identities.findings.differ(sequence, f"sequence {sequence}: key and key source do not fit together")
        if fields[_TARGET_SEQUENCE] is not None:
            self.corrections.expect(sequence, int.from_bytes(fields[_TARGET_SEQUENCE], "big", signed=True))
        if not _sent(tenant_id, fields, occurred_at, received_at):
            self.content.differ(sequence, f"sequence {sequence}: its columns do not match its content hash")
        return bool(fields[1] == _CONTROL)

    def _check_head(self, last: Link) -> None:
        head = self.head
        if (head.commit_id, head.ingress_sequence, head.source_timestamp, head.digest, head.skipped) != (
            last.commit_id, last.last, last.source_timestamp, last.digest, last.skipped,
        ):  # fmt: skip
            what = f"the head says commit {head.commit_id}, sequence {head.ingress_sequence}; the last commit is {last}"
            self.chain.differ(max(head.ingress_sequence, last.last), what + " or has another digest")
        row = self._connection.execute(QUERIES["beyond_head"]).fetchone()
        assert row is not None
        if row[0] is not None:
            self.density.differ(row[0], f"sequence {row[0]} is beyond the head")
        if row[1] is not None:
            self.density.differ(head.ingress_sequence + 1, f"commit {row[1]} is beyond the head")


def _sent(tenant_id: str, fields: list[Any], occurred_at: int, received_at: int) -> bool:
    """Whether the columns are what was sent."""
    _, stream, customer_ref, resource_id, _, op, quantity, data, *_ = fields
    target, stored_hash = fields[_TARGET], fields[14]
    sent = sent_of(
        tenant_id=tenant_id,
        stream=stream.decode(),
        customer_ref=None if customer_ref is None else customer_ref.decode(),
        resource_id=None if resource_id is None else resource_id.decode(),
        op=op.decode(),
        occurred_at=occurred_at,
        quantity=None if quantity is None else numeric_text(quantity),
        data=data,
        target=None if target is None else target.decode(),
        received_at=received_at,
        stored_hash=stored_hash,
    )
    return sent is not None


class CorrectionProof:
    """Takes the corrections one by one, and compares them with the table that says what was corrected, in pages."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.findings = Findings("corrections")
        self._connection = connection
        self._page: dict[int, int] = {}
        self._count = 0

    def expect(self, sequence: int, target_sequence: int) -> None:
        self._page[sequence] = target_sequence
        if len(self._page) >= _CORRECTIONS_PAGE:
            self._compare()

    def finish(self, through: int) -> None:
        """Compare the rest; then, since every correction has its row, their number reveals any extra one."""
        self._compare()
        (count,) = self._connection.execute(QUERIES["count_corrections"], [through]).fetchone() or (0,)
        if count != self._count and self.findings.first is None:
            stray = self._connection.execute(QUERIES["stray_correction"], [through]).fetchone()
            sequence, target = stray or (through, None)
            what = f"corrections say that sequence {sequence} corrects sequence {target}, but it does not"
            self.findings.differ(sequence, what)

    def check(self) -> Check:
        return self.findings.check(f"each correction is noted with its target: {self._count:,} in all")

    def _compare(self) -> None:
        page, self._page = self._page, {}
        self._count += len(page)
        found = dict(self._connection.execute(QUERIES["noted_corrections"], [list(page)]).fetchall()) if page else {}
        for sequence, target in page.items():
            if (noted := found.get(sequence)) != target:
                what = "is not noted in corrections" if noted is None else f"is noted as one of sequence {noted}"
                self.findings.differ(sequence, f"sequence {sequence}, a correction of sequence {target}, {what}")


class IdentityProof:
    """Takes the events one by one; pages of them are compared in a thread while the walk continues."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.findings = Findings("identities")
        self._connection = connection
        self._worker = ThreadPoolExecutor(1, "verify-identities")
        self._page: list[bytes] = []
        self._asked: Future[list[tuple[int, str]]] | None = None
        self._count = 0
        connection.execute(_SESSION)

    def expect(self, sequence: int, digest: bytes, content_hash: bytes, key_source: bytes) -> None:
        self._page.append(_record.pack(digest, sequence, content_hash, key_source))
        if len(self._page) >= _IDENTITIES_PAGE:
            self._ask()

    def finish(self, through: int) -> None:
        """Compare the rest; then, since every event has its own identity, their number reveals any extra one."""
        self._ask()
        self._collect()
        row = self._connection.execute(QUERIES["count_identities"], [through]).fetchone()
        assert row is not None
        if row[0] != self._count and self.findings.first is None:
            self.findings.differ(*self._stray(through, row[0]))

    def check(self) -> Check:
        return self.findings.check(f"each event with a key has its identity: {self._count:,} in all")

    def _ask(self) -> None:
        self._collect()
        page, self._page = self._page, []
        self._count += len(page)
        self._asked = self._worker.submit(self._differing, page)

    def _differing(self, page: list[bytes]) -> list[tuple[int, str]]:
        # In the order of the index: neighbours are found on one page of it.
        page.sort()
        values = {"count": len(page), "page": b"".join(page)}
        found = self._connection.cursor(binary=True).execute(QUERIES["differing_identities"], values)
        return [_named(page[number], identity) for number, *identity in found]

    def _collect(self) -> None:
        if self._asked is not None:
            for difference in self._asked.result():
                self.findings.differ(*difference)
            self._asked = None

    def _stray(self, through: int, recorded: int) -> tuple[int, str]:
        row = self._connection.execute(QUERIES["stray_identity"], [through]).fetchone()
        if row is None:
            return through, f"{recorded:,} identities are recorded, but {self._count:,} events have a key"
        return row[0], f"identity {row[1]} points to sequence {row[0]}, which has no key or does not exist"

    def __enter__(self) -> IdentityProof:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.shutdown(cancel_futures=True)


def _named(expected: bytes, identity: list[Any]) -> tuple[int, str]:
    """The sequence of an event whose identity differs, and how."""
    _, sequence, content_hash, _ = _record.unpack(expected)
    recorded, recorded_hash, _ = identity
    if recorded is None:
        what = "its identity is not recorded, so a retry would be recorded as a new event"
    elif recorded != sequence:
        what = f"its identity says sequence {recorded}"
    elif recorded_hash != content_hash:
        what = "its identity has another content hash"
    else:
        what = "its identity has another key source"
    return sequence, f"sequence {sequence}: {what}"


class AnchorProof:
    """Reads the file when created, which must be before the head is read: a later line does not prove a lost tail."""

    def __init__(self, path: Path) -> None:
        self.findings = Findings("anchor")
        self._path = path
        self._lines: list[AnchorLine] = []
        #: lines of commits whose loss was accepted
        self._lost = 0
        try:
            self._lines = read_anchors(path)
        except (BadAnchor, OSError) as error:
            self.findings.differ(0, f"the anchor file: {error}")

    def compare(self, connection: psycopg.Connection[Any], head: Head, losses: Sequence[Loss]) -> None:
        """Lines inside an accepted loss no longer count."""
        ids = [line.commit_id for line in self._lines]
        found = connection.execute(QUERIES["anchored_commits"], [ids]).fetchall()
        recorded = {commit_id: (last, digest.hex()) for commit_id, last, digest in found}
        for line in self._lines:
            place = f"commit {line.commit_id}, anchored at {line.at} with sequence {line.ingress_sequence},"
            if any(loss.has_commit(line.commit_id) for loss in losses):
                self._lost += 1
            elif line.commit_id > head.commit_id:
                ends = f"the ledger ends at commit {head.commit_id}, sequence {head.ingress_sequence}"
                self.findings.differ(head.ingress_sequence + 1, f"the tail was cut off: {place} is missing; {ends}")
            elif line.commit_id not in recorded:
                self.findings.differ(line.ingress_sequence, f"{place} is not in the ledger")
            elif recorded[line.commit_id] != (line.ingress_sequence, line.digest):
                self.findings.differ(line.ingress_sequence, f"{place} had a different digest or end")

    def check(self) -> Check:
        if not self._lines:
            return self.findings.check(f"{self._path} has no anchor yet, so a lost tail would not be found")
        last = self._lines[-1]
        many = number_of(len(self._lines), "anchor")
        lost = f"; {self._lost:,} of them belong to commits whose loss was accepted" if self._lost else ""
        return self.findings.check(f"{many}, the last at {last.at} for commit {last.commit_id:,}{lost}")
