"""Change lines: changes of a table as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.text import Text

from tidelock.changes.reader import Change
from tidelock.instants import format_instant
from tidelock.model import DEFAULT_TENANT

_STYLES = {"insert": "green", "update": "yellow", "delete": "red"}


def change_line(change: Change, form: Mapping[str, Any]) -> Text:
    """When, what happened to which key, and the columns that are not as before."""
    old, new = form["old"], form["new"]
    operation = "insert" if old is None else "delete" if new is None else "update"
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{change.source_timestamp}", style="bold")
    line.append(f"  {format_instant(change.source_timestamp)}", style="dim")
    if change.tenant_id != DEFAULT_TENANT:
        line.append(f"  {change.tenant_id}", style="magenta")
    line.append(f"  {operation}", style=_STYLES[operation])
    line.append(f"  {change.key}", style="cyan")
    for name, value in (new or {}).items():
        before = old.get(name) if old is not None else None
        if name != "tenant_id" and value != before:
            line.append(f"  {name} ", style="dim")
            line.append(f"{_text(before)} -> {_text(value)}" if old is not None else _text(value))
    return line


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
