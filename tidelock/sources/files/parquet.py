"""Rows of a Parquet file: values keep their types, exactly."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.errors import SettingsError
from tidelock.instants import SECOND, format_instant
from tidelock.sources.fields import ColumnMap, FieldTarget, event_text
from tidelock.sources.files.plainfile import open_file
from tidelock.sources.files.rows import FileRow

_BATCH_ROWS = 1000
_UNITS = {"s": SECOND, "ms": SECOND // 1000, "us": SECOND // 1_000_000, "ns": 1}
_JSON_FIELDS = frozenset({"data", "meta", "payload"})


class ParquetRows:
    """Row 1 is the first row of the file."""

    def __init__(self, path: Path, mapping: ColumnMap) -> None:
        self._path = path
        self._handle = open_file(path)
        try:
            self._file = pq.ParquetFile(self._handle)
            self._targets = mapping.targets(self._file.schema_arrow.names, path)
        except (pa.ArrowException, OSError) as error:
            self._handle.close()
            raise SettingsError(f"{path} is not a Parquet file: {_first_line(error)}") from None
        except SettingsError:
            self.close()
            raise
        self._rows = self._file.metadata.num_rows
        self._done = 0

    @property
    def fraction(self) -> float:
        return self._done / self._rows if self._rows else 1.0

    @property
    def names_stream(self) -> bool:
        return any(target in (FieldTarget("stream", False), FieldTarget("metric", False)) for target in self._targets)

    def rows(self, after: int) -> Iterator[FileRow]:
        number, groups = self._groups_behind(after)
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, row_groups=groups, use_threads=False) if groups else ():
                columns = [_values(column, target) for column, target in zip(batch.columns, self._targets, strict=True)]
                for position in range(batch.num_rows):
                    number += 1
                    if number > after:
                        yield FileRow(number, event_text([column[position] for column in columns], self._targets))
                self._done = number
        except (pa.ArrowException, OSError, UnicodeDecodeError, TypeError, OverflowError) as error:
            raise SettingsError(f"{self._path} cannot be read after row {number}: {_first_line(error)}") from None

    def close(self) -> None:
        self._file.close()
        self._handle.close()

    def _groups_behind(self, after: int) -> tuple[int, list[int]]:
        """The row groups that hold the rows still wanted, and how many rows lie before them."""
        skipped = 0
        for group in range(self._file.num_row_groups):
            size = self._file.metadata.row_group(group).num_rows
            if skipped + size > after:
                return skipped, list(range(group, self._file.num_row_groups))
            skipped += size
        return skipped, []


def _values(column: pa.Array, target: FieldTarget | None) -> list[Any]:
    if target is None:
        return [None] * len(column)
    values = _plain(column)
    if target.is_member or target.name in _JSON_FIELDS:
        return values
    if target.name in ("ts", "occurredAt"):
        return [_time(value) for value in values]
    if target.name in ("quantity", "ingressSequence", "commitId"):
        return values
    return [None if value is None else _text(value) for value in values]


def _plain(column: pa.Array) -> list[Any]:
    """Values that JSON can carry: instants and days as text, bytes in base64, the rest as it is."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        unit = _UNITS[kind.unit]
        return _mapped(column.cast(pa.int64()), lambda value: format_instant(value * unit))
    if pa.types.is_date64(kind):
        return _plain(column.cast(pa.date32()))
    if pa.types.is_time(kind) or pa.types.is_date(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_duration(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _mapped(column, lambda value: b64encode(value).decode())
    if pa.types.is_nested(kind):
        return _nested(column, kind)
    return list(column.to_pylist())


def _nested(column: pa.Array, kind: pa.DataType) -> list[Any]:
    present = column.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: _plain(column.field(i)) for i in range(kind.num_fields)}
        return [{name: fields[name][i] for name in fields} if here else None for i, here in enumerate(present)]
    if pa.types.is_map(kind):
        return [
            None if entries is None else {_text(key): value for key, value in entries}
            for entries in _lists(
                column, lambda child: list(zip(_plain(child.field(0)), _plain(child.field(1)), strict=True))
            )
        ]
    return _lists(column, _plain)


def _lists(column: pa.Array, plain: Callable[[pa.Array], list[Any]]) -> list[Any]:
    return [None if not scalar.is_valid else plain(scalar.values) for scalar in column]


def _mapped(column: pa.Array, convert: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in column.to_pylist()]


def _time(value: Any) -> Any:
    """A bare day is its midnight."""
    return f"{value}T00:00:00Z" if isinstance(value, str) and len(value) == len("2026-01-31") else value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
