"""Exact numbers: JSON read and written so that each number keeps the digits that were recorded."""

from __future__ import annotations

import json
from typing import Any

import msgspec


class RecordedNumber(float):
    """A number with a fraction or an exponent, and how it is written: 1.10 is shown as 1.10, not as 1.1."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> RecordedNumber:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


read = msgspec.json.Decoder(float_hook=RecordedNumber).decode


def write(value: Any, indent: str = "", margin: str = "") -> str:
    """JSON, in one line unless there is an indent."""
    match value:
        case RecordedNumber():
            return value.text
        case dict() if value:
            members = [f"{_leaf(name)}: {write(each, indent, margin + indent)}" for name, each in value.items()]
            return _between("{", members, "}", indent, margin)
        case list() if value:
            return _between("[", [write(each, indent, margin + indent) for each in value], "]", indent, margin)
        case _:
            return _leaf(value)


def _between(start: str, parts: list[str], end: str, indent: str, margin: str) -> str:
    if not indent:
        return f"{start}{', '.join(parts)}{end}"
    inner = f"\n{margin}{indent}"
    return f"{start}{inner}{f',{inner}'.join(parts)}\n{margin}{end}"


def _leaf(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
