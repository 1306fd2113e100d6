"""What a comparison finds. Apart from it, because the server and the command show differences without loading Spark."""

from __future__ import annotations

import msgspec


class Differing(msgspec.Struct, frozen=True, rename="camel"):
    """A counter that other definitions would change; null where there is none before or after."""

    tenant_id: str
    metric: str
    customer_ref: str
    period_start: str
    value_before: str | None
    value_after: str | None
    total_before: str | None
    total_after: str | None
    #: value after minus value before, null being 0
    difference: str
