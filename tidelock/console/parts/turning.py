"""Turning the pages of a list of the API's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tidelock.console.frame import Visit
from tidelock.console.paging import Pages
from tidelock.console.parts.tables import pager


class Turning:
    """Which page of a list is shown, and the buttons that lead to the others; every turn reads the list anew."""

    def __init__(self, visit: Visit, read: Callable[[], Awaitable[None]]) -> None:
        self._visit = visit
        self._read = read
        self._pages = Pages()

    @property
    def cursor(self) -> str | None:
        """Of the page to read."""
        return self._pages.cursor

    @property
    def has_back(self) -> bool:
        return self._pages.has_back

    def draw(self, labels: tuple[str, str] = ("Previous", "Next")) -> None:
        """The buttons, here."""
        self._pager = pager(self._back, self._on, labels)

    def took(self, found: dict[str, Any]) -> None:
        """Tell of the page that was read."""
        pages = self._pages
        pages.take(found["next"])
        self._pager.set(pages.text(len(found["items"])), back=pages.has_back, on=pages.has_on)

    async def restart(self, *_: object) -> None:
        """Another list, from its beginning."""
        self._pages.restart()
        await self._visit.tried(self._read)

    async def _back(self) -> None:
        self._pages.back()
        await self._visit.tried(self._read)

    async def _on(self) -> None:
        self._pages.on()
        await self._visit.tried(self._read)
