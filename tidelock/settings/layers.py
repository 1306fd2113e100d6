"""Layers: the values from file, environment and flags, each as the same kind of item.

TOML is read exactly: numbers with a fraction stay decimal, and errors give line and column.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from tidelock.errors import SettingsError
from tidelock.sections import Section, shown, unknown_key
from tidelock.settings.options import Option, sections

S = TypeVar("S")
Table = Mapping[str, Option]

_ENVIRONMENT = "the environment"
_PREFIX = "TIDELOCK_"

_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Given:
    """A value given for a setting."""

    option: Option
    value: object
    #: how errors name the place where it was given
    place: str

    def read(self) -> object:
        """The value as the code uses it. Raises SettingsError."""
        spec = self.option.spec
        try:
            return spec.kind.read(self.value)
        except (ValueError, OverflowError, RecursionError):
            # Not `from error`: its text would contain the value, which may be a secret.
            what = "the value (not shown)" if spec.secret else shown(self.value)
        message = f"{self.option.path} in {self.place}: {what} is not allowed; it must be {spec.kind.allowed}"
        raise SettingsError(message, field=self.option.path)


def from_file(file: Section, table: Table, *, definitions: Collection[str]) -> dict[str, Given]:
    """The values in the file; the tables of definitions are read elsewhere."""
    return {given.option.path: given for given in _flat(file, table, definitions)}


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a file. Raises SettingsError."""
    text = _file_text(path)
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(_where_and_why(path, text, str(error))) from None
    except (ValueError, ArithmeticError, RecursionError):
        # Python fails on absurdly large numbers and nesting with its own errors.
        raise SettingsError(f"{path} cannot be read: it has too large a number or too deep a nesting") from None


def _flat(section: Section, table: Table, definitions: Collection[str]) -> Iterator[Given]:
    prefix = f"{section.path}." if section.path else ""
    below = [path.removeprefix(prefix) for path in table if path.startswith(prefix)]
    known = dict.fromkeys(name.partition(".")[0] for name in below)
    known.update(dict.fromkeys([] if prefix else definitions))
    for name, value in section.values.items():
        if section.path in definitions and isinstance(value, Mapping):
            continue  # a meter, not a setting of all meters
        if (option := table.get(prefix + name)) is not None:
            yield Given(option, value, section.place)
        elif name not in known:
            raise unknown_key(section.key(name), name, known, section.place)
        elif any(path.startswith(f"{name}.") for path in below):
            yield from _flat(section.table(name), table, definitions)


def from_environment(environ: Mapping[str, str], table: Table) -> dict[str, Given]:
    options = {option.env: option for option in table.values()}
    for name in environ:
        if name.startswith(_PREFIX) and name not in options:
            raise unknown_key(name, name, options, _ENVIRONMENT)
    given = {}
    for name, option in options.items():
        # A variable shared with other programs may be set but empty; ours may not.
        if (other := option.spec.also_env) and environ.get(other):
            given[option.path] = Given(option, environ[other], f"{_ENVIRONMENT} ({other})")
        if name in environ:
            given[option.path] = Given(option, environ[name], f"{_ENVIRONMENT} ({name})")
    return given


def from_flags(flags: Mapping[str, object], table: Table) -> dict[str, Given]:
    for name in flags:
        if name not in table:
            raise unknown_key(name, name, table, "the flags")
    return {
        name: Given(table[name], value, f"the flags ({table[name].flag})")
        for name, value in flags.items()
        if value is not None
    }


def build(settings: type[S], values: Mapping[str, object], prefix: str = "") -> S:
    """An instance of a settings class, with defaults for what is not among the values."""
    inner: dict[str, Any] = {
        name: build(section, values, f"{prefix}{name}.") for name, section in sections(settings).items()
    }
    under = {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}
    own: dict[str, Any] = {name: value for name, value in under.items() if "." not in name}
    return settings(**own, **inner)


def _file_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SettingsError(f"{path} does not exist", field="config") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", field="config") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig")
        raise SettingsError(f"{path}, {_position(before)}: this is not UTF-8") from None


def _where_and_why(path: Path, text: str, message: str) -> str:
    match = _AT.fullmatch(message)
    if match is None:
        return f"{path} is not TOML: {message}"
    why, line, column = match.groups()
    where = f"line {line}, column {column}" if line else _position(text)
    return f"{path}, {where}: {why}"


def _position(before: str) -> str:
    """Line and column of what follows a text."""
    lines = before.split("\n")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}"
