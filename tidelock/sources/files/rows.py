"""Rows of a file: each becomes the JSON text of an event, so that one decoder judges them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from tidelock.errors import SettingsError
from tidelock.model import Problem, Rejected
from tidelock.sources.files.mapping import ColumnMap, Target
from tidelock.sources.files.plainfile import COMPRESSED

FORMATS = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson"), "parquet": (".parquet", ".pq")}
#: the longest row that is read
ROW_BYTES_MAX = 16 * 2**20

_JSON_FIELDS = frozenset({"data", "meta", "payload"})
_json = msgspec.json.Decoder(msgspec.Raw)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: decimals as JSON numbers, digit by digit
encode = msgspec.json.Encoder(decimal_format="number").encode


class Row(NamedTuple):
    """A row by its number in the file, from 1 on."""

    number: int
    #: JSON text of the event, or why there is none
    text: bytes | Rejected


class RowFile(Protocol):
    """A file that is read once from some row on. Raises SettingsError, naming file and row, where it cannot go on."""

    @property
    def fraction(self) -> float:
        """How much of the file was read, from 0 to 1."""

    @property
    def names_stream(self) -> bool:
        """Whether rows can say their stream."""

    def rows(self, after: int) -> Iterator[Row]:
        """The rows behind the one with this number."""

    def close(self) -> None: ...


def format_of(path: Path, given: str | None) -> str:
    """The format of a file: as told, else by its ending."""
    if given is not None:
        if given not in FORMATS:
            raise SettingsError(f"--format {given!r} is not known; known are {', '.join(FORMATS)}")
        return given
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSED]
    for name, endings in FORMATS.items():
        if suffixes and suffixes[-1] in endings:
            return name
    raise SettingsError(f"{path}: the ending does not tell the format; say --format {'|'.join(FORMATS)}")


def open_rows(path: Path, file_format: str, mapping: ColumnMap) -> RowFile:
    if file_format == "csv":
        from tidelock.sources.files.csvrows import CsvRows

        return CsvRows(path, mapping)
    if file_format == "parquet":
        from tidelock.sources.files.parquetrows import ParquetRows

        return ParquetRows(path, mapping)
    from tidelock.sources.files.jsonrows import JsonRows

    return JsonRows(path, mapping)


def event_text(values: Sequence[object], targets: Sequence[Target | None]) -> bytes | Rejected:
    """The JSON text of an event from the values of its columns; None is left out."""
    event: dict[str, object] = {}
    members: dict[str, object] = {}
    for value, target in zip(values, targets, strict=True):
        if value is not None and target is not None:
            (members if target.is_member else event)[target.name] = value
    for name in _JSON_FIELDS & event.keys():
        text = event[name]
        if isinstance(text, str):
            try:
                event[name] = _json.decode(text)
            except msgspec.DecodeError as error:
                return Rejected(Problem("invalid_json", f"{name} is not JSON: {error}", name))
    return _with_members(event, members) if members else encode(event)


def _with_members(event: dict[str, object], members: dict[str, object]) -> bytes | Rejected:
    name = next((name for name in ("data", "meta", "payload") if name in event), "data")
    try:
        given = _members.decode(encode(event[name])) if name in event else {}
    except msgspec.DecodeError:
        column = next(iter(members))
        message = f"{name} is not a JSON object, so column {column!r} cannot become a member of it"
        return Rejected(Problem("invalid_event", message, name))
    event[name] = {**given, **members}
    return encode(event)
