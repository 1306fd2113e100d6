"""Findings: the differences found by a check, and the report of several checks."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    name: str
    ok: bool
    detail: str


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of all checks."""

    ok: bool
    checks: list[Check]

    @classmethod
    def of(cls, checks: list[Check]) -> Report:
        return cls(all(check.ok for check in checks), checks)


class Findings:
    """The differences one check found: the first is kept, the others are counted."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: where in the ledger the first difference is, and what it is
        self.first: tuple[int, str] | None = None
        self._count = 0

    def differ(self, sequence: int, what: str) -> None:
        self._count += 1
        if self.first is None or sequence < self.first[0]:
            self.first = sequence, what

    def check(self, when_none: str) -> Check:
        if self.first is None:
            return Check(self.name, True, when_none)
        more = f" (and {self._count - 1:,} more)" if self._count > 1 else ""
        return Check(self.name, False, self.first[1] + more)


def first_difference(findings: list[Findings]) -> str | None:
    """The one that comes first in the ledger; of several at one place, the one whose check is listed first."""
    found = [each.first for each in findings if each.first is not None]
    return min(found, key=lambda first: first[0])[1] if found else None
