"""Event lines: recorded events as people read them in a terminal, one line each or as a tree of causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from tidelock.model import DEFAULT_TENANT, Recorded

if TYPE_CHECKING:
    from tidelock.ledger.reader import Caused

_SEQUENCE_WIDTH = 8
_TIME_WIDTH = len("2026-01-31T23:59:59.999999Z")


def event_line(event: Recorded) -> Text:
    """Sequence, time, whose and what; what is absent takes no room."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{event.ingress_sequence:>{_SEQUENCE_WIDTH}}", style="bold")
    line.append(f"  {event.occurred_at:<{_TIME_WIDTH}}", style="dim")
    if event.tenant_id != DEFAULT_TENANT:
        line.append(f"  {event.tenant_id}", style="magenta")
    line.append(f"  {event.stream}", style="cyan")
    for value in (event.customer_ref, event.resource_id):
        if value is not None:
            line.append(f"  {value}")
    if event.op == "delete":
        line.append("  delete", style="red")
    if event.quantity is not None:
        line.append(f"  {event.quantity}", style="green")
    data = bytes(event.data).decode()
    if event.error is not msgspec.UNSET:
        line.append(f"  {event.error.code}: {event.error.message}", style="red")
    if data != "null":
        line.append(f"  {data}", style="dim")
    return line


def print_event(console: Console, event: Recorded) -> None:
    """Cut at the edge of the terminal; where nobody looks it is whole."""
    console.print(event_line(event), no_wrap=True, overflow="ellipsis" if console.is_terminal else "ignore", crop=False)


def causality_tree(key: str, events: Sequence[Caused]) -> Tree:
    """Each event below the one that caused it; in ledger order among its siblings."""
    root = Tree(Text(f"{key}: {len(events)} events", style="bold"))
    branches: dict[int, Tree] = {}
    for event in events:
        line = event_line(event)
        line = line[_SEQUENCE_WIDTH - len(str(event.ingress_sequence)) :]
        parent = branches.get(event.parent) if event.parent is not None else None
        if parent is None and event.parent is not None:
            line.append(f"  caused by {event.parent}", style="yellow")
        branches[event.ingress_sequence] = (parent or root).add(line)
    return root
