"""Pages of a list, by the API's cursors: on, and back the way one came."""

from __future__ import annotations


class Pages:
    """Where in a list one is. The API tells the next page only, so the cursors behind are kept."""

    def __init__(self) -> None:
        self._cursors: list[str | None] = [None]
        self._next: str | None = None

    @property
    def cursor(self) -> str | None:
        """Of the page to read."""
        return self._cursors[-1]

    @property
    def number(self) -> int:
        return len(self._cursors)

    @property
    def has_back(self) -> bool:
        return len(self._cursors) > 1

    @property
    def has_on(self) -> bool:
        return self._next is not None

    def take(self, following: str | None) -> None:
        """What the page that was read says of the next."""
        self._next = following

    def on(self) -> None:
        if self._next is not None:
            self._cursors.append(self._next)
            self._next = None

    def back(self) -> None:
        if self.has_back:
            self._cursors.pop()

    def restart(self) -> None:
        """Another list, from its beginning."""
        self._cursors = [None]
        self._next = None

    def text(self, rows: int) -> str:
        """What is shown."""
        if not self.has_back and not self.has_on:
            return "" if rows == 0 else "1 row" if rows == 1 else f"{rows} rows"
        return f"page {self.number}"
