"""TOML files, read exactly: numbers with a fraction stay decimal, errors say line and column."""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from pathlib import Path

from tidelock.errors import SettingsError

_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a file. Raises SettingsError."""
    text = _text(path)
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(_where_and_why(path, text, str(error))) from None
    except (ValueError, ArithmeticError, RecursionError):
        # Python gives up on numbers and nestings of absurd size with errors of its own.
        raise SettingsError(f"{path} cannot be read: it has a number or a nesting that is too large") from None


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file", field="config") from None
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
