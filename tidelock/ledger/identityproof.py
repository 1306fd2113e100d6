"""Proof of the identities: every event with a key has exactly its own, and there is no other.

The comparison is the database's: it is sent what must be there, and answers with what is not so.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from struct import Struct
from types import TracebackType
from typing import Any

import psycopg

from tidelock.ledger.findings import Check, Findings
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/verify.sql")

_PAGE_EVENTS = 10_000
# Lookups by the primary key, page after page; the planner, who sees one page, would read the whole table for each.
_SESSION = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off"
_record = Struct("!16sq32sc")


class IdentityProof:
    """Takes the events one by one; pages of them are compared in a thread while the walk goes on."""

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
        if len(self._page) >= _PAGE_EVENTS:
            self._ask()

    def finish(self, through: int) -> None:
        """Compare what is left; then, as every event has its own identity, the number of them shows any other."""
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
        return row[0], f"identity {row[1]} is said to be of sequence {row[0]}, which has no key or is not there"

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
        what = "its identity is not recorded, so a retry would be taken as new"
    elif recorded != sequence:
        what = f"its identity says sequence {recorded}"
    elif recorded_hash != content_hash:
        what = "its identity has another content hash"
    else:
        what = "its identity has another key source"
    return sequence, f"sequence {sequence}: {what}"
