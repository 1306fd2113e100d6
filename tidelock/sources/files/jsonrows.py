"""Rows of a JSONL file: one event a line, as a request would carry them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidelock.errors import SettingsError
from tidelock.sources.files.mapping import ColumnMap
from tidelock.sources.files.plainfile import PlainFile
from tidelock.sources.files.rows import ROW_BYTES_MAX, Row, encode

_BOM = b"\xef\xbb\xbf"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonRows:
    """A row's number is that of its line; blank lines are skipped."""

    names_stream = True

    def __init__(self, path: Path, mapping: ColumnMap) -> None:
        self._file = PlainFile(path)
        self._path = path
        self._mapping = mapping

    @property
    def fraction(self) -> float:
        return self._file.fraction

    def rows(self, after: int) -> Iterator[Row]:
        number = 0
        while line := self._file.readline(ROW_BYTES_MAX):
            number += 1
            if len(line) == ROW_BYTES_MAX and not line.endswith(b"\n"):
                raise SettingsError(f"{self._path} line {number} is longer than {ROW_BYTES_MAX} bytes")
            if number == 1:
                line = line.removeprefix(_BOM)
            if number > after and not line.isspace():
                yield Row(number, self._renamed(line) if self._mapping else line)

    def close(self) -> None:
        self._file.close()

    def _renamed(self, line: bytes) -> bytes:
        try:
            return encode(self._mapping.rename(_members.decode(line)))
        except msgspec.DecodeError:
            return line
