"""Exporting: a slice of the ledger as it is now to a file, page by page, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from tidelock.errors import SettingsError
from tidelock.instants import parse_rfc3339
from tidelock.ledger.reader import Slice, pages, read_head
from tidelock.model import Recorded
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import Steady, database_errors
from tidelock.sources.files.plainfile import writing

# In a column data is a string anyway: none is unreadable, and `error` is not needed.
COLUMNS = Recorded.__struct_encode_fields__[:-1]

_ATTRIBUTES = Recorded.__struct_fields__[:-1]
_SPECIAL = frozenset(',"\r\n')
_encode = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str)

_PAGE_BYTES = 8 * 2**20
_PAGE_ROWS = 10_000

#: called with the number of events written and the part of the slice processed
Told = Callable[[int, float], None]


async def export(database: Database, events: Slice, file_format: str, file: IO[bytes], told: Told) -> int:
    """Write the slice up to the current head; returns the number of events."""
    writer = event_writer(file_format, file)
    count = 0
    with database_errors("export"):
        async with Steady(database, "tidelock export", patience=database.patience) as steady:
            # The ledger only grows, so pages up to here are consistent without holding a snapshot.
            end = (await steady.run(read_head)).ingress_sequence + 1
            rest = replace(events, after=events.after or 0, before=min(end, events.before or end))
            first, last = rest.after or 0, rest.before or 0
            async with aclosing(pages(steady, rest, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES, as_text=True)) as found:
                async for page in found:
                    writer.write(page)
                    count += len(page)
                    told(count, (page[-1].ingress_sequence - first) / max(1, last - 1 - first))
    writer.finish()
    return count


@contextmanager
def published(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is complete."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as raw:
            with writing(raw, path.suffix) as file:
                yield file
            raw.flush()
            os.fsync(raw.fileno())
        beside.replace(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)


class EventWriter(Protocol):
    """Takes events page by page; `finish` writes what a format has at its end."""

    def write(self, events: Sequence[Recorded]) -> None: ...

    def finish(self) -> None: ...


def event_writer(file_format: str, file: IO[bytes]) -> EventWriter:
    if file_format == "csv":
        return _CsvWriter(file)
    return _ParquetWriter(file) if file_format == "parquet" else _JsonWriter(file)


class _JsonWriter:
    """One event per line, as everywhere else."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, events: Sequence[Recorded]) -> None:
        self._file.write(b"".join([_encode(event) + b"\n" for event in events]))

    def finish(self) -> None:
        pass


class _CsvWriter:
    """Nothing is null, `""` is an empty text: the csv module writes both alike."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._file.write(",".join(COLUMNS).encode() + b"\n")

    def write(self, events: Sequence[Recorded]) -> None:
        for event in events:
            fields = [_csv_field(_value(event, name)) for name in _ATTRIBUTES]
            self._file.write(",".join(fields).encode() + b"\n")

    def finish(self) -> None:
        pass


def _value(event: Recorded, name: str) -> object:
    value = getattr(event, name)
    if name == "data" and event.error is not msgspec.UNSET:
        return msgspec.Raw(_text.decode(value).encode())
    return value


def _csv_field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, msgspec.Raw):
        text = bytes(value).decode()
        if text == "null":
            return ""
    else:
        text = str(value)
    return '"' + text.replace('"', '""') + '"' if not text or not _SPECIAL.isdisjoint(text) else text


class _ParquetWriter:
    """Integers, instants and decimals as such; `data` is its JSON text."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        instant = pa.timestamp("ns", tz="UTC")
        special = {
            "ingress_sequence": pa.int64(), "commit_id": pa.int64(), "source_timestamp": pa.int64(),
            "target_sequence": pa.int64(), "received_at": instant, "occurred_at": instant,
            "quantity": pa.decimal128(38, 9),
        }  # fmt: skip
        self._schema = pa.schema(
            [(column, special.get(name, pa.string())) for column, name in zip(COLUMNS, _ATTRIBUTES, strict=True)]
        )
        self._batch = pa.record_batch
        self._array = pa.array
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, events: Sequence[Recorded]) -> None:
        columns = [
            self._array(_parquet_values(name, [_value(event, name) for event in events]), kind.type)
            for name, kind in zip(_ATTRIBUTES, self._schema, strict=True)
        ]
        self._writer.write_batch(self._batch(columns, schema=self._schema))

    def finish(self) -> None:
        self._writer.close()


def _parquet_values(name: str, values: list[Any]) -> list[Any]:
    if name in ("received_at", "occurred_at"):
        return [parse_rfc3339(value) for value in values]
    if name == "source_timestamp":
        return [int(value) for value in values]
    if name == "quantity":
        return [None if value is None else Decimal(value) for value in values]
    if name == "data":
        texts = [bytes(value).decode() for value in values]
        return [None if text == "null" else text for text in texts]
    return values
