"""Navigation: every page of the console that has a place in its menu. Without NiceGUI: the server knows its paths."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A page, and every path below its own."""

    path: str
    title: str
    icon: str
    #: in `tidelock.console.pages`
    module: str
    #: has a place in the bar of a phone; the others are behind "More"
    near: bool = False

    def has(self, path: str) -> bool:
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


ENTRIES = (
    Entry("/", "Overview", "pulse", "overview", near=True),
    Entry("/events", "Events", "rows", "events", near=True),
    Entry("/counters", "Counters", "bars", "counters", near=True),
    Entry("/windows", "Windows", "window", "windows", near=True),
    Entry("/subscriptions", "Subscriptions", "broadcast", "subscriptions"),
    Entry("/triggers", "Triggers", "bolt", "triggers"),
    Entry("/streams", "Definitions", "layers", "streams"),
    Entry("/verify", "Verify", "shield", "verify"),
)


def entry_of(path: str) -> Entry | None:
    return next((entry for entry in ENTRIES if entry.has(path)), None)
