"""Settings of `tidelock backfill`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tidelock.settings.options as options


@dataclass(frozen=True, slots=True)
class Backfill:
    """An older table of events that `tidelock backfill` records."""

    url: str | None = options.text(
        None,
        "Postgres that has the table; the flag is `--from`.",
        unset="none",
        example="postgresql://reader@old.example/workflows",
        secret=True,
    )
    table: str | None = options.text(None, "The table, with its schema where needed.", unset="none")
    map: Mapping[str, str] = options.table(
        "Which column is which field of an event, where its name does not tell; `data.NAME` is a member of data, `-` "
        "leaves a column out. The flag is `--map COLUMN=FIELD`.",
        example='{ kind = "stream", run = "causalityKey" }',
    )
    stream: str | None = options.text(None, "Stream of all rows, where no column names it.", unset="that of the column")
    tenant: str | None = options.text(None, "Tenant of rows that name none.", unset="`default`")
    chunk_events: int = options.integer(1_000, "Rows that are recorded at a time.", maximum=1_000)
