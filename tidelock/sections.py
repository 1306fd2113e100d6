"""Sections: the tables of tidelock.toml, read key by key.

Reading a key gives a value of the right type, or an error with the key, the file, the given value and what is allowed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelock.durations import parse_duration
from tidelock.errors import SettingsError

T = TypeVar("T")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_MAX = 60


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the file."""

    #: dotted, as a TOML header has it; "" is the top of the file
    path: str
    values: Mapping[str, object]
    #: how errors call the file
    file: str

    @property
    def place(self) -> str:
        return f"{self.file} [{self.path}]" if self.path else self.file

    def key(self, name: str) -> str:
        """The full path of a key."""
        shown = name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        return f"{self.path}.{shown}" if self.path else shown

    def fail(self, name: str, message: str) -> SettingsError:
        return SettingsError(f"{self.key(name)} in {self.file}: {message}", field=self.key(name))

    def refuse(self, name: str, allowed: str) -> SettingsError:
        """The error for a value that is not what it must be."""
        return self.fail(name, f"{shown(self.values[name])} is not allowed; it must be {allowed}")

    def only(self, known: Iterable[str]) -> None:
        """Every key must be known: a typo must not look like a default."""
        names = list(known)
        for name in self.values:
            if name not in names:
                raise unknown_key(self.key(name), name, names, self.place)

    def table(self, name: str) -> Section:
        """The table of that name, empty when there is none."""
        value = self.values.get(name, {})
        if not isinstance(value, Mapping):
            raise self.refuse(name, "a table")
        return Section(self.key(name), value, self.file)

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self.refuse(name, "a non-empty string")
        return value

    def parsed(self, name: str, parse: Callable[[str], T], allowed: str) -> T | None:
        """A string, parsed by a function that raises ValueError with what is allowed."""
        if self.values.get(name) is not None and not isinstance(self.values[name], str):
            raise self.refuse(name, allowed)
        text = self.text(name)
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise self.refuse(name, str(error)) from None

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        value = self.values.get(name, default)
        if value not in (allowed := list(choices)):
            raise self.refuse(name, f"one of: {' '.join(allowed)}")
        return str(value)

    def duration_ns(self, name: str, *, minimum: int = 0) -> int | None:
        nanoseconds = self.parsed(name, parse_duration, 'a duration such as "10s"')
        if nanoseconds is not None and nanoseconds < minimum:
            raise self.refuse(name, "longer than 0")
        return nanoseconds

    def names(self, name: str) -> tuple[str, ...]:
        """One string, or a list of distinct strings."""
        value = self.values.get(name, [])
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            raise self.refuse(name, "a column name or a list of column names")
        if len(set(items)) < len(items):
            raise self.refuse(name, "a list without duplicates")
        return tuple(items)


def unknown_key(key: str, word: str, known: Iterable[str], place: str) -> SettingsError:
    """The error for an unknown key, with the key that was probably meant."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return SettingsError(f"{key} is not a known key in {place}{hint}", field=key)


def number_of(count: int, noun: str) -> str:
    """A number of things as a person writes it: 1 row, 2,000 rows."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def shown(value: object) -> str:
    """A value as an error message has it: as TOML writes it, and not too long."""
    match value:
        case Mapping():
            return "a table"
        case bool():
            return "true" if value else "false"
        case str():
            text = json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            # However deep they go: lists inside are only named.
            items = ("a list" if isinstance(item, list | tuple) else shown(item) for item in value[:10])
            text = "[" + ", ".join(items) + "]"
        case int() if abs(value) >= 10**_SHOWN_MAX:
            return "a number of that size"
        case _:
            text = str(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
