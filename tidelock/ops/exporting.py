"""Exporting: a slice of the ledger as it is now to a file, page by page, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from tidelock.errors import SettingsError
from tidelock.ledger.database import Database
from tidelock.ledger.outage import outage
from tidelock.ledger.reader import Slice, read_events, read_head
from tidelock.ops.files.eventwriters import event_writer
from tidelock.ops.files.plainfile import writing

# Rows of a page follow the size of events: pages stay near so many bytes.
_PAGE_BYTES = 8 * 2**20
_PAGE_ROWS, _PAGE_ROWS_MAX = 1_000, 10_000

#: called with the events written and the part of the slice that was looked through
Told = Callable[[int, float], None]


async def export(database: Database, events: Slice, file_format: str, file: IO[bytes], told: Told) -> int:
    """Write the slice up to the head of this moment; returns how many events it has."""
    writer = event_writer(file_format, file)
    count = 0
    rows = _PAGE_ROWS
    with outage("export"):
        async with await database.connect(name="tidelock export") as connection:
            # The ledger only grows, so that pages up to here are one consistent whole without holding a snapshot.
            end = (await read_head(connection)).ingress_sequence + 1
            page = replace(events, after=events.after or 0, before=min(end, events.before or end))
            first, last = page.after or 0, page.before or 0
            while found := await read_events(connection, page, limit=rows):
                writer.write(found)
                count += len(found)
                reached = found[-1].ingress_sequence
                told(count, (reached - first) / max(1, last - 1 - first))
                if len(found) < rows:
                    break
                page = replace(page, after=reached)
                rows = _rows_for(sum(len(bytes(event.data)) for event in found) // len(found))
    writer.finish()
    return count


def _rows_for(data_bytes: int) -> int:
    return max(10, min(_PAGE_ROWS_MAX, _PAGE_BYTES // (data_bytes + 400)))


@contextmanager
def published(path: Path) -> Iterator[IO[bytes]]:
    """A file that is there under its name when it is complete, and not at all before."""
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
