"""Proof by the anchor file: the ledger still has every commit that was anchored, and did not end before the last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from tidelock.ledger.anchorfile import AnchorLine, BadAnchor, read_anchors
from tidelock.ledger.findings import Check, Findings
from tidelock.ledger.losttail import Loss
from tidelock.model import Head
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/verify.sql")


class AnchorProof:
    """Reads the file when it is made, which must be before the head is read: a later line is no proof of a cut tail."""

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
        """Lines inside a loss that was accepted no longer count."""
        ids = [line.commit_id for line in self._lines]
        found = connection.execute(QUERIES["anchored_commits"], [ids]).fetchall()
        recorded = {commit_id: (last, digest.hex()) for commit_id, last, digest in found}
        for line in self._lines:
            place = f"commit {line.commit_id}, anchored at {line.at} with sequence {line.ingress_sequence},"
            if any(loss.has_commit(line.commit_id) for loss in losses):
                self._lost += 1
            elif line.commit_id > head.commit_id:
                ends = f"the ledger ends at commit {head.commit_id}, sequence {head.ingress_sequence}"
                self.findings.differ(head.ingress_sequence + 1, f"the tail was cut off: {place} is gone; {ends}")
            elif line.commit_id not in recorded:
                self.findings.differ(line.ingress_sequence, f"{place} is not in the ledger")
            elif recorded[line.commit_id] != (line.ingress_sequence, line.digest):
                self.findings.differ(line.ingress_sequence, f"{place} had another digest or end than it has now")

    def check(self) -> Check:
        if not self._lines:
            return self.findings.check(f"{self._path} has no anchor yet, so a cut tail would not be found")
        last = self._lines[-1]
        many = "1 anchor" if len(self._lines) == 1 else f"{len(self._lines):,} anchors"
        lost = f"; {self._lost:,} of them are of commits whose loss was accepted" if self._lost else ""
        return self.findings.check(f"{many}, the last at {last.at} for commit {last.commit_id:,}{lost}")
