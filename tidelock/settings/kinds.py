"""Kinds of settings: how a value of each is read and written.

A value comes from TOML with its type, from the environment and most flags as text. A reader accepts both and raises
ValueError for anything else; its kind says what is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from tidelock.durations import DURATION_MAX, format_duration, parse_duration

N = TypeVar("N", int, float)

_DURATIONS_MAX = 100
_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value."""

    #: what is allowed: completes "it must be ..."
    allowed: str
    #: from TOML, environment or flag to what the code uses; ValueError when it is not allowed
    read: Callable[[object], object]
    #: as written in tidelock.toml
    write: Callable[[Any], str] = json.dumps


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return value


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    match _text(value).lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
    raise ValueError


def _path(value: object) -> Path:
    try:
        # A directory called "~" is never what was meant.
        return value if isinstance(value, Path) else Path(_text(value)).expanduser()
    except RuntimeError:
        raise ValueError from None


def _names(value: object) -> tuple[str, ...]:
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError
    return tuple(_text(item) for item in items)


def _origins(value: object) -> tuple[str, ...]:
    found = tuple(item.lower() for item in (_names(value) if value != "" else ()))
    if not all(map(_ORIGIN.fullmatch, found)):
        raise ValueError
    return found


def _durations(value: object) -> tuple[int, ...]:
    items = _names(value) if value != "" else ()
    if len(items) > _DURATIONS_MAX:
        raise ValueError
    return tuple(map(parse_duration, items))


def _table(value: object) -> dict[str, str]:
    members = json.loads(value) if isinstance(value, str) else value
    if not isinstance(members, Mapping):
        raise ValueError
    return {_parameter(name): _scalar(member) for name, member in members.items()}


def _flattened(members: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """TOML turns unquoted names with dots into tables, which is a valid way to write them."""
    for name, member in members.items():
        path = prefix + _text(name)
        if isinstance(member, Mapping):
            yield from _flattened(member, f"{path}.")
        else:
            yield path, ("true" if member else "false") if isinstance(member, bool) else _scalar(member)


def _parameter(name: object) -> str:
    if not _PARAMETER.fullmatch(text := _text(name)):
        raise ValueError
    return text


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, int | float | Decimal) else _text(value)


TEXT = Kind("a non-empty string", _text)
FLAG = Kind("true or false", _flag)
PATH = Kind("a path", _path, lambda path: json.dumps(str(path)))
NAMES = Kind("a list of names; in the environment, separated by commas", _names, lambda names: json.dumps(list(names)))
ORIGINS = Kind(
    'a list of origins such as "https://app.example.com", without a path; in the environment, separated by commas',
    _origins,
    lambda origins: json.dumps(list(origins)),
)
DURATIONS = Kind(
    f'a list of up to {_DURATIONS_MAX} durations such as "10s" or "48h"; in the environment, separated by commas',
    _durations,
    lambda numbers: json.dumps([format_duration(number) for number in numbers]),
)
TABLE = Kind("a table of strings; in the environment, a JSON object", _table)


def properties(names: str, form: str) -> Kind:
    """Values by dotted names; `names` describes them, `form` is their pattern."""
    compiled = re.compile(form)

    def read(value: object) -> dict[str, str]:
        members = json.loads(value) if isinstance(value, str) else value
        if not isinstance(members, Mapping):
            raise ValueError
        flat = dict(_flattened(members))
        if not all(map(compiled.fullmatch, flat)):
            raise ValueError
        return flat

    return Kind(f"a table of values whose names {names}; in the environment, a JSON object", read)


SPARK_PROPERTIES = properties('begin with "spark."', r"spark\.[^\s=]+")
KAFKA_PROPERTIES = properties("are those of librdkafka", r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")


def pattern(form: str, allowed: str) -> Kind:
    compiled = re.compile(form)

    def read(value: object) -> str:
        if not compiled.fullmatch(text := _text(value)):
            raise ValueError
        return text

    return Kind(allowed, read)


def choice(choices: tuple[str, ...]) -> Kind:
    def read(value: object) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return Kind(f"one of: {' '.join(choices)}", read)


def integer(minimum: int, maximum: int) -> Kind:
    def read(value: object) -> int:
        return _bounded(_whole(value), minimum, maximum)

    return Kind(f"a whole number {_bounds(str(minimum), str(maximum))}", read)


def _whole(value: object) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError
    return value


def seconds(minimum: float, maximum: float) -> Kind:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise ValueError
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise ValueError
        return _bounded(float(value), minimum, maximum)

    return Kind(f"a number of seconds {_bounds(f'{minimum:g}', f'{maximum:g}')}", read, lambda number: f"{number:g}")


def size(minimum: int, maximum: int) -> Kind:
    def read(value: object) -> int:
        return _bounded(parse_size(value) if isinstance(value, str) else _whole(value), minimum, maximum)

    bounds = _bounds(format_size(minimum), format_size(maximum))
    return Kind(f'bytes, or a size such as "16MiB", {bounds}', read, lambda number: json.dumps(format_size(number)))


def duration(minimum: int) -> Kind:
    def read(value: object) -> int:
        return _bounded(parse_duration(_text(value)), minimum, DURATION_MAX)

    least = f", at least {format_duration(minimum)}" if minimum else ""
    return Kind(f'a duration such as "10s" or "48h"{least}', read, lambda number: json.dumps(format_duration(number)))


def parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError
    return int(match[1]) * _SIZE_UNITS[match[2] or "B"]


def format_size(number: int) -> str:
    unit = next(unit for unit in reversed(_SIZE_UNITS) if number % _SIZE_UNITS[unit] == 0)
    return f"{number // _SIZE_UNITS[unit]}{unit}"


def _bounds(minimum: str, maximum: str) -> str:
    return f"from {minimum} to {maximum}"


def _bounded(number: N, minimum: N, maximum: N) -> N:
    if not minimum <= number <= maximum:
        raise ValueError
    return number
