"""COPY's text format: lines of fields, with everything that could be taken for a separator escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_NULL = b"\\N"


class Lines:
    """Whole lines of what comes in blocks, which need not end where lines do."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, block: bytes) -> Iterator[bytes]:
        # In a field a line break is escaped, so that every bare one ends a line.
        *lines, self._rest = (self._rest + block if self._rest else block).split(b"\n")
        return iter(lines)


def fields(line: bytes) -> list[str | None]:
    """The fields of a line; None is null. Raises UnicodeDecodeError for what is no UTF-8."""
    if b"\\" not in line:
        return list(line.decode().split("\t"))
    return [None if field == _NULL else _unescaped(field).decode() for field in line.split(b"\t")]


def _unescaped(field: bytes) -> bytes:
    return _ESCAPE.sub(_meant, field) if b"\\" in field else field


def _meant(escape: re.Match[bytes]) -> bytes:
    octal, hexadecimal, letter = escape.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 255])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return _LETTERS.get(letter, letter)
