"""The outcome of an import: how many rows went which way, and which did not get into the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tidelock.decimals import has_long_number
from tidelock.model import Conflict, Rejected
from tidelock.ops.files.rows import Row


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that is not in the ledger as the file has it."""

    row: Row
    verdict: Rejected | Conflict

    def encode(self) -> bytes:
        """As JSON: its number, the verdict, and the row itself, as text where readers cannot parse it."""
        told: dict[str, object] = {"row": self.row.number, **msgspec.to_builtins(self.verdict)}
        if isinstance(self.row.text, bytes):
            told["event"] = _as_json(self.row.text)
        return msgspec.json.encode(told)


@dataclass(slots=True)
class Imported:
    """What became of the rows."""

    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    #: control events of an export
    skipped: int = 0
    #: an earlier run had come so far
    resumed_after: int = 0
    rows_done: int = 0
    finished: bool = False
    #: the first of them
    problems: list[RowProblem] = field(default_factory=list)


def _as_json(text: bytes) -> msgspec.Raw | str:
    try:
        plain = text.decode()
        if has_long_number(text):
            # Whoever reads the report would lose all of it.
            return plain.rstrip("\r\n")
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.decode(errors="replace").rstrip("\r\n")
