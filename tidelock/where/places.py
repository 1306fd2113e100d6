"""Places in a filter: where something is, such as `_and[1].price._gt`, and the errors that name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelock.errors import RequestError
from tidelock.sections import shown

_NAME_LENGTH_MAX = 100


class InvalidFilter(RequestError):
    """A filter that means nothing for its columns; `field` is the place in it."""

    code = "invalid_definition"
    http_status = 422


@dataclass(frozen=True, slots=True)
class Place:
    """A path into a filter; "" is the filter itself."""

    path: str = ""

    def member(self, name: str) -> Place:
        short = name if len(name) <= _NAME_LENGTH_MAX else name[:_NAME_LENGTH_MAX] + "..."
        return Place(f"{self.path}.{short}" if self.path else short)

    def item(self, index: int) -> Place:
        return Place(f"{self.path}[{index}]")

    def invalid(self, message: str) -> InvalidFilter:
        return InvalidFilter(f"{self.path or 'the filter'}: {message}", field=self.path or None)

    def members(self, given: object, expected: str) -> Mapping[str, object]:
        """What is there, if it is an object."""
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise self.invalid(f"{_kind(given)} is not allowed; it must be {expected}")
        return given

    def items(self, given: object, expected: str) -> Sequence[object]:
        """What is there, if it is a list."""
        if not isinstance(given, list | tuple):
            raise self.invalid(f"{_kind(given)} is not allowed; it must be {expected}")
        return given


def _kind(given: object) -> str:
    match given:
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case None:
            return "null"
        case _:
            return shown(given)
