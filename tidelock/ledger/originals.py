"""Recorded events read back as `Event`, to compare their content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelock.ingest.identity import content_hash
from tidelock.model import Event, KeySource
from tidelock.quantities import normal_quantity

KEY_SOURCES: dict[str | None, KeySource] = {"c": "client", "d": "derived", None: "none"}


def original(row: Sequence[Any]) -> Event:
    """The event of a row of `read_originals`, with the content hash that was stored."""
    (
        _, tenant_id, stream, customer_ref, resource_id, row_key, op, occurred_at, received_at, quantity, data,
        causality_key, correlation_id, causation_id, source, key, key_source, stored_hash,
    ) = row  # fmt: skip
    encoded = None if data is None else data.encode()
    normal = None if quantity is None else normal_quantity(quantity)
    sent_at = occurred_at
    if occurred_at == received_at:
        # The moment of receipt may stand in for an absent ts: the hash tells, for it covers what was sent.
        absent = content_hash(tenant_id, stream, customer_ref, resource_id, None, normal, op, encoded)
        sent_at = None if absent == stored_hash else occurred_at
    return Event(
        tenant_id, stream, customer_ref, resource_id, row_key, op, sent_at, normal, encoded, causality_key,
        correlation_id, causation_id, source, () if key is None else (key,), (), KEY_SOURCES[key_source], stored_hash,
    )  # fmt: skip
