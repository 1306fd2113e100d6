"""Event-time types, for plugins: named parsers of the time that a producer put into an event.

A type's parser takes a Spark Column of strings and returns a Column of BIGINT nanoseconds since 1970 UTC: null where
the string is not a time. It must be built from functions that cannot raise (`try_to_timestamp`, `try_cast`, ...), since
one bad event would stop the fold, and must depend on nothing but its input.

    # shop/eventtime.py, with plugins = ["shop.eventtime"] in tidelock.toml
    from pyspark.sql import Column, functions as F

    from tidelock.eventtimes import eventtime_types

    def days(text: Column) -> Column:
        return F.try_multiply(text.try_cast("bigint"), F.lit(86_400_000_000_000))

    eventtime_types.register("days", days)

This module does not import Spark until a parser is used, so that servers and commands can check names.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelock.columns import TIMESTAMP, ColumnType
from tidelock.definitions import Definitions
from tidelock.definitions.eventtimes import EVENTTIME_ALIASES, unknown_type
from tidelock.errors import SettingsError
from tidelock.sections import Section
from tidelock.spark import casts

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["EventtimeTypeRegistry", "Parser", "eventtime_types"]

#: text -> BIGINT nanoseconds, null where it does not parse
Parser = Callable[["Column"], "Column"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


class BuiltIn(ABC):
    """A parser that is also available as SQL, which the fold uses."""

    @abstractmethod
    def sql(self, text: str, type_: ColumnType | None = None, typed: str = "") -> str:
        """Nanoseconds of a text, which is the name of a column. `typed` names its value where it has a type."""

    def __call__(self, text: Column) -> Column:
        from pyspark.sql import functions

        # A lambda is the one way to give any expression a name inside SQL text.
        parse = functions.expr(f"text -> {self.sql('text')}")
        return functions.call_function("transform", functions.array(text), parse)[0]


class _Rfc3339(BuiltIn):
    def sql(self, text: str, type_: ColumnType | None = None, typed: str = "") -> str:
        return typed if type_ == TIMESTAMP else casts.typed(TIMESTAMP, text)


class _UnixTimestamp(BuiltIn):
    """A number since 1970, in units of 10^decimals nanoseconds. One too large is the greatest BIGINT: in the future."""

    def __init__(self, decimals: int) -> None:
        self._decimals = decimals

    def sql(self, text: str, type_: ColumnType | None = None, typed: str = "") -> str:
        match type_ and type_.name:
            case "int" | "bigint":
                return casts.whole_instant(typed, self._decimals)
            case "double":
                return casts.double_instant(typed, self._decimals)
        return casts.number_instant(text, self._decimals)


class EventtimeTypeRegistry:
    """Parsers by name."""

    def __init__(self) -> None:
        self._parsers: dict[str, Parser] = {
            "unixtimestamp_s": _UnixTimestamp(9),
            "unixtimestamp_ms": _UnixTimestamp(6),
            "unixtimestamp_us": _UnixTimestamp(3),
            "unixtimestamp_ns": _UnixTimestamp(0),
            "rfc3339": _Rfc3339(),
        }
        for alias, name in EVENTTIME_ALIASES.items():
            self._parsers[alias] = self._parsers[name]

    def register(self, name: str, parser: Parser) -> None:
        """Add a type. Raises SettingsError if the name belongs to another parser."""
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise SettingsError(f"an event-time type must have a name of the form {_NAME.pattern}, not {name!r}")
        if not callable(parser):
            raise SettingsError(f'the parser of event-time type "{name}" must be a function of a Spark Column')
        if self._parsers.setdefault(name, parser) is not parser:
            raise SettingsError(f'the event-time type "{name}" already exists; choose another name')

    def resolve(self, name: str) -> Parser:
        """The parser of a type. Raises SettingsError with the available types."""
        if name not in self._parsers:
            raise SettingsError(f'there is no event-time type "{name}"; available: {" ".join(self.list())}')
        return self._parsers[name]

    def list(self) -> tuple[str, ...]:
        """The names of all types, built-in ones first."""
        return tuple(self._parsers)


#: the types of this process
eventtime_types = EventtimeTypeRegistry()


def stream_parser(stream: str, name: str, types: EventtimeTypeRegistry = eventtime_types) -> Parser:
    """The parser of a stream's event time. Raises SettingsError that names the stream and what is available."""
    if name not in types.list():
        table = Section(f"{Section('streams', {}, '').key(stream)}.eventtime", {}, "tidelock.toml")
        raise unknown_type(stream, table, name, types.list())
    return types.resolve(name)


def load_plugins(modules: Iterable[str]) -> None:
    """Import the modules named by the setting `plugins`, which register their types.

    Raises SettingsError naming the module that fails.
    """
    # As `python -m` does: a module beside tidelock.toml is found however the command was started.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise _failed(module, error) from error
            message = f'no module "{error.name}" in {os.getcwd()}, on PYTHONPATH, or installed'
            raise SettingsError(f'plugins: "{module}" cannot be imported: {message}', field="plugins") from None
        # Any exception: it is not our code.
        except Exception as error:
            raise _failed(module, error) from error


def check_event_times(definitions: Definitions) -> None:
    """Whether there is a parser for every stream's event time. Raises SettingsError."""
    for name, stream in definitions.timed.items():
        if stream.eventtime is not None and stream.eventtime.type is not None:
            stream_parser(name, stream.eventtime.type)


def _failed(module: str, error: Exception) -> SettingsError:
    told = error.message if isinstance(error, SettingsError) else f"{type(error).__name__}: {error}"
    return SettingsError(f'plugins: "{module}" cannot be imported: {told}', field="plugins")
