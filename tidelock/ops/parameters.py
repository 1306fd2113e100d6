"""Parameters: the query of a request, read name by name. What is unknown, repeated or malformed is told by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from tidelock.errors import RequestError
from tidelock.instants import parse_epoch_ms, parse_rfc3339

SEQUENCE_MAX = 2**63 - 2

_INTEGER = re.compile(r"[0-9]{1,19}", re.ASCII)
_MILLISECONDS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
# In a query a `+` that was not escaped is a space; between time and offset it can be nothing else.
_LOST_PLUS = re.compile(r"(:[0-9]{2}(?:\.[0-9]+)?) ([0-9]{2}:[0-9]{2})", re.ASCII)


class Parameters:
    """The parameters of one request. A mistyped name must not look like no filter: only known ones are taken."""

    def __init__(self, query: bytes, known: Collection[str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name not in known:
                raise RequestError(_unknown(name, known), field=name)
            if name in self._values:
                raise RequestError(f"{name} is given twice", field=name)
            if "\0" in value:
                raise RequestError(f"{name} contains NUL", field=name)
            self._values[name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def name(self, name: str) -> str | None:
        """A text that cannot be empty."""
        value = self._values.get(name)
        if value == "":
            raise RequestError(f"{name} is empty; leave it out to have all", field=name)
        return value

    def sequence(self, name: str, *, minimum: int = 0) -> int | None:
        return self._integer(name, minimum, SEQUENCE_MAX)

    def limit(self, *, default: int, maximum: int) -> int:
        limit = self._integer("limit", 1, maximum)
        return default if limit is None else limit

    def instant(self, name: str) -> int | None:
        value = self._values.get(name)
        try:
            return None if value is None else parse_instant(value)
        except ValueError as error:
            raise RequestError(f"{name}: {error}", field=name) from None

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self._values.get(name)
        if value is not None and value not in choices:
            raise RequestError(f"{name} is {' or '.join(choices)}", field=name)
        return value

    def _integer(self, name: str, minimum: int, maximum: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not _INTEGER.fullmatch(value) or not minimum <= int(value) <= maximum:
            raise RequestError(f"{name} is a whole number from {minimum} to {maximum}", field=name)
        return int(value)


def required(name: str, value: str | None) -> str:
    """The value of a parameter that there must be."""
    if value is None:
        raise RequestError(f"{name} is missing", field=name)
    return value


def parse_instant(text: str) -> int:
    """An instant as people ask for it: RFC 3339, or integer epoch milliseconds. Raises ValueError."""
    if _MILLISECONDS.fullmatch(text):
        return parse_epoch_ms(int(text))
    return parse_rfc3339(_LOST_PLUS.sub(r"\1+\2", text))


def _unknown(name: str, known: Collection[str]) -> str:
    shown = repr(name if len(name) <= 60 else name[:60] + "...")
    nearest = difflib.get_close_matches(name[:60], known, n=1, cutoff=0.0)
    return f"there is no parameter {shown}" + (f"; the nearest known one is {nearest[0]}" if nearest else "")
