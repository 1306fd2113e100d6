"""Ordered lines: released rows and watermarks, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from rich.text import Text

from tidelock.changes.forms import change_forms
from tidelock.changes.reader import Change
from tidelock.columns import ColumnType
from tidelock.instants import format_instant
from tidelock.model import DEFAULT_TENANT
from tidelock.ops import terminal
from tidelock.views.ordered import is_watermark

_POSITION_WIDTH = 8
_TIME_WIDTH = len("2026-01-31T23:59:59.999999Z")


class OrderedPrinter:
    """Prints what an ordered tail reads."""

    def __init__(self, columns: Mapping[str, ColumnType], *, json: bool) -> None:
        self._form = change_forms(columns)
        self._json = json
        self._console = terminal.console()
        #: source timestamp of the change of a definition that was told of last
        self._rewritten = 0

    def print(self, changes: Iterable[Change]) -> None:
        if self._json:
            terminal.write(msgspec.json.encode(self._object(change)) for change in changes if self._is_told(change))
            return
        for change in changes:
            if self._is_told(change):
                seen = self._console.is_terminal
                self._console.print(
                    self._line(change), no_wrap=True, overflow="ellipsis" if seen else "ignore", crop=False
                )

    def _is_told(self, change: Change) -> bool:
        if is_watermark(change) or (change.old is None and change.new is not None):
            return True
        # What was given out is never changed, but by another definition.
        if self._rewritten != change.source_timestamp:
            self._rewritten = change.source_timestamp
            at = format_instant(change.source_timestamp)
            terminal.say(f"The definition was changed at {at}: rows before it are others now. --after 0 shows them.")
        return False

    def _object(self, change: Change) -> dict[str, object]:
        at = str(change.source_timestamp)
        if is_watermark(change):
            return {"sourceTimestamp": at, "tenantId": change.tenant_id, "watermark": _watermark(change)}
        return {"sourceTimestamp": at, "row": self._form(change)["new"]}

    def _line(self, change: Change) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        if is_watermark(change):
            line.append(f"{'watermark':>{_POSITION_WIDTH + 2}}  ", style="blue")
            line.append(f"{_watermark(change):<{_TIME_WIDTH}}", style="blue")
            return line if change.tenant_id == DEFAULT_TENANT else line.append(f"  {change.tenant_id}", style="magenta")
        row = self._form(change)["new"]
        assert isinstance(row, dict), "only rows that are there are told of"
        line.append(f"{row['position']:>{_POSITION_WIDTH + 2}}", style="bold")
        line.append(f"  {row['event_time']:<{_TIME_WIDTH}}", style="cyan")
        if change.tenant_id != DEFAULT_TENANT:
            line.append(f"  {change.tenant_id}", style="magenta")
        for name, value in row.items():
            if name not in ("tenant_id", "position", "event_time") and value is not None:
                line.append(f"  {name} ", style="dim")
                line.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        return line


def _watermark(change: Change) -> str:
    assert change.new is not None, "a watermark never goes"
    return format_instant(change.new["watermark"])
