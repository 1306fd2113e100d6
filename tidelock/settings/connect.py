"""Settings of connectors."""

from __future__ import annotations

from dataclasses import dataclass

import tidelock.settings.options as fields


@dataclass(frozen=True, slots=True)
class Materialize:
    """The view that `tidelock connect materialize` follows."""

    url: str | None = fields.text(
        None,
        "Materialize that has the view; the flag is `--from`.",
        unset="none",
        example="postgresql://tidelock@materialize.example:6875/materialize",
        secret=True,
    )
    view: str | None = fields.text(
        None, "The view, written as in SQL, with its schema where needed; the flag is `--view`.", unset="none"
    )
    stream: str | None = fields.text(
        None,
        "The stream that its rows become events of; it must be declared with a key.",
        unset="that of the view's name",
    )
    tenant: str | None = fields.text(None, "Tenant of its rows.", unset="`default`")


@dataclass(frozen=True, slots=True)
class Connect:
    """Connectors, which follow foreign views."""

    pause_max: int = fields.duration(
        "30s",
        "Longest pause before a view that was lost is looked for again; the first is half a second.",
        minimum="100ms",
    )
    patience: int = fields.duration(
        "1h", "How long a view that was lost is looked for before the connector gives up.", minimum="0s"
    )
    part_rows_max: int = fields.integer(
        10_000,
        "Most rows of one moment that are held in memory. More wait in the ledger's database until the moment is "
        "complete.",
        maximum=1_000_000,
    )
    materialize: Materialize = fields.section(Materialize)  # noqa: RUF009  (a field, not a default)
