"""The state of windows, and of ordered output: how far time has come for each of them and each tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from tidelock.instants import format_instant
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ops", "sql/windows.sql")


class WindowHealth(msgspec.Struct, frozen=True, rename="camel"):
    """A window, or the ordered output of a stream, and one tenant of it."""

    window: str
    tenant_id: str
    watermark: str | None
    closed_through: str | None
    buffer_size: int
    late_dropped_count: int
    watermark_emitted_count: int
    max_timestamp_seen: str | None


class WindowState(NamedTuple):
    """The same with instants as they are stored."""

    window: str
    tenant_id: str
    watermark: int | None
    closed_through: int | None
    buffer_size: int
    late_dropped_count: int
    watermark_emitted_count: int
    max_timestamp_seen: int | None

    def health(self) -> WindowHealth:
        shown = {name: _shown(getattr(self, name)) for name in ("watermark", "closed_through", "max_timestamp_seen")}
        return WindowHealth(**(self._asdict() | shown))


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows that are told of, by tenant and name."""

    states: Sequence[WindowState] = ()
    #: there are more
    cut: bool = False


NO_WINDOWS = Windows()


@dataclass(frozen=True, slots=True)
class WantedWindows:
    """Which windows are asked for: at most so many, of every tenant or one, all of them or one."""

    limit: int
    tenant_id: str | None = None
    window: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the query `windows`; it looks for one more, to know whether there are."""
        return {"tenant_id": self.tenant_id, "window": self.window, "limit": self.limit + 1}

    def found(self, rows: Sequence[Sequence[Any]]) -> Windows:
        """What the query has given."""
        return Windows([WindowState(*row) for row in rows[: self.limit]], len(rows) > self.limit)


def _shown(instant: int | None) -> str | None:
    return None if instant is None else format_instant(instant)
