"""Rows of a CSV or JSONL file: each becomes the JSON text of an event, so that one decoder handles them all."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from tidelock.errors import SettingsError
from tidelock.model import Problem, Rejected
from tidelock.sources.fields import ColumnMap, FieldTarget, encode, event_text
from tidelock.sources.files.plainfile import COMPRESSED, PlainFile

FORMATS = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson"), "parquet": (".parquet", ".pq")}
#: the longest row that is read
ROW_BYTES_MAX = 16 * 2**20
_DELIMITERS = (",", "\t", ";")
_TIMES = frozenset({"ts", "occurredAt"})
_EPOCH = re.compile(r"-?\d{1,18}", re.ASCII)
# A field of a record: quoted (1) or not, and what ends it.
_FIELD = r'(?:("(?:[^"]|"")*")|([^{0}"\r\n]*))(?:{0}|\r?\n|\r|\Z)'
_BOM = b"\xef\xbb\xbf"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class FileRow(NamedTuple):
    """A row by its number in the file, from 1 on."""

    number: int
    #: JSON text of the event, or why it has none
    text: bytes | Rejected


class RowFile(Protocol):
    """A file that is read once from some row on. Raises SettingsError with file and row if it cannot continue."""

    @property
    def fraction(self) -> float:
        """How much of the file was read, from 0 to 1."""

    @property
    def names_stream(self) -> bool:
        """Whether rows can name their stream."""

    def rows(self, after: int) -> Iterator[FileRow]:
        """The rows after the one with this number."""

    def close(self) -> None: ...


def format_of(path: Path, given: str | None) -> str:
    """The format of a file: as given, else by its ending."""
    if given is not None:
        if given not in FORMATS:
            raise SettingsError(f"--format {given!r} is not a known format; choose one of {', '.join(FORMATS)}")
        return given
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSED]
    for name, endings in FORMATS.items():
        if suffixes and suffixes[-1] in endings:
            return name
    raise SettingsError(f"{path}: the file extension does not show the format; pass --format {'|'.join(FORMATS)}")


def open_rows(path: Path, file_format: str, mapping: ColumnMap) -> RowFile:
    """The rows of a file, with its columns mapped. Raises SettingsError."""
    if file_format == "csv":
        return CsvRows(path, mapping)
    if file_format == "parquet":
        # Imported here, because other formats need no Arrow.
        from tidelock.sources.files.parquet import ParquetRows

        return ParquetRows(path, mapping)
    return JsonRows(path, mapping)


class CsvRows:
    """Row 1 is the first record below the column names. An empty field is absent; `""` is an empty text."""

    def __init__(self, path: Path, mapping: ColumnMap) -> None:
        self._path = path
        self._file = PlainFile(path)
        csv.field_size_limit(ROW_BYTES_MAX)
        self._line = 0
        self._text = ""
        try:
            self._open(mapping)
        except SettingsError:
            self.close()
            raise

    def _open(self, mapping: ColumnMap) -> None:
        header = self._readline()
        if not header.strip():
            raise SettingsError(f"{self._path} is empty; a CSV file starts with a line of column names")
        delimiter = next((letter for letter in _DELIMITERS if letter in header), ",")
        self._field = re.compile(_FIELD.format(re.escape(delimiter)))
        self._reader = csv.reader(self._lines(header), delimiter=delimiter, strict=True)
        self._columns = self._record(0) or []
        self._targets = mapping.targets(self._columns, self._path)

    @property
    def fraction(self) -> float:
        return self._file.fraction

    @property
    def names_stream(self) -> bool:
        return any(target in (FieldTarget("stream", False), FieldTarget("metric", False)) for target in self._targets)

    def rows(self, after: int) -> Iterator[FileRow]:
        number = 0
        while (record := self._record(number + 1)) is not None:
            if not record:
                continue  # A blank line is not a record.
            number += 1
            if number > after:
                yield FileRow(number, self._event_text(record))

    def close(self) -> None:
        self._file.close()

    def _record(self, number: int) -> list[str] | None:
        self._text = ""
        try:
            return next(self._reader, None)
        except csv.Error as error:
            raise SettingsError(f"{self._path} row {number} (line {self._line}): {error}") from None

    def _event_text(self, record: list[str]) -> bytes | Rejected:
        if len(record) != len(self._columns):
            what = f"line {self._line} has {len(record)} fields, but there are {len(self._columns)} columns"
            return Rejected(Problem("invalid_event", what))
        return event_text(self._values(record), self._targets)

    def _values(self, record: list[str]) -> list[object]:
        values: list[object] = [field or None for field in record]
        if None in values and '""' in self._text:
            self._restore_empty_texts(values)
        for position, target in enumerate(self._targets):
            text = record[position]
            if target is not None and not target.is_member and target.name in _TIMES and _EPOCH.fullmatch(text):
                values[position] = int(text)
        return values

    def _restore_empty_texts(self, values: list[object]) -> None:
        """The csv module does not tell `""` from nothing; the record's own text does."""
        for position, found in zip(range(len(values)), self._field.finditer(self._text), strict=False):
            if found[1] == '""':
                values[position] = ""

    def _lines(self, header: str) -> Iterator[str]:
        line = header
        while line:
            self._text += line
            yield line
            line = self._readline()

    def _readline(self) -> str:
        line = self._file.readline(ROW_BYTES_MAX)
        self._line += bool(line)
        if len(line) == ROW_BYTES_MAX and not line.endswith(b"\n"):
            raise SettingsError(f"{self._path} line {self._line} is longer than {ROW_BYTES_MAX} bytes")
        try:
            return line.decode("utf-8-sig" if self._line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            why = f"{error.reason} at byte {error.start + 1}"
            raise SettingsError(f"{self._path} line {self._line} is not UTF-8: {why}; save the file as UTF-8") from None


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

    def rows(self, after: int) -> Iterator[FileRow]:
        number = 0
        while line := self._file.readline(ROW_BYTES_MAX):
            number += 1
            if len(line) == ROW_BYTES_MAX and not line.endswith(b"\n"):
                raise SettingsError(f"{self._path} line {number} is longer than {ROW_BYTES_MAX} bytes")
            if number == 1:
                line = line.removeprefix(_BOM)
            if number > after and not line.isspace():
                yield FileRow(number, self._renamed(line) if self._mapping else line)

    def close(self) -> None:
        self._file.close()

    def _renamed(self, line: bytes) -> bytes:
        try:
            return encode(self._mapping.rename(_members.decode(line)))
        except msgspec.DecodeError:
            return line
