"""Exporting: a slice of the ledger as it is now to a file, page by page, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from tidelock.errors import SettingsError
from tidelock.ledger.reader import Slice, pages, read_head
from tidelock.ops.files.eventwriters import event_writer
from tidelock.ops.files.plainfile import writing
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import Steady, database_errors

_PAGE_BYTES = 8 * 2**20
_PAGE_ROWS = 10_000

#: called with the events written and the part of the slice that was looked through
Told = Callable[[int, float], None]


async def export(database: Database, events: Slice, file_format: str, file: IO[bytes], told: Told) -> int:
    """Write the slice up to the head of this moment; returns how many events it has."""
    writer = event_writer(file_format, file)
    count = 0
    with database_errors("export"):
        async with Steady(database, "tidelock export", patience=database.patience) as steady:
            # The ledger only grows, so that pages up to here are one consistent whole without holding a snapshot.
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
