"""Explanations as the client hands them out."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

from tests.client.scripted import says, scripted
from tidelock.client import AsyncClient, Client, Explanation

_PART: dict[str, Any] = {
    "count": 1, "sum": "1", "max": "1", "min": "1", "last": "1", "firstSequence": 1, "lastSequence": 1,
}  # fmt: skip
_PLAIN = (
    "metric", "customerRef", "aggregation", "period", "definition", "why", "periodStart", "periodEnd", "group",
    "value", "adjustment", "total", "watermark", "closedSequence",
    "throughSequence", "filtered", "deleted", "pending", "agrees", "next",
)  # fmt: skip
_TOLD = (
    "occurredAt", "part", "adjustedReason", "counted", "change", "total", "group", "code", "message", "corrects",
    "correctedBy", "countedText",
)  # fmt: skip
_CORRECTIONS = {"voids": 0, "amendments": 0, "adjusted": 0, "uncounted": 0}


async def test_the_data_of_an_explained_event_has_every_digit_that_was_sent() -> None:
    item = {"ingressSequence": 1, **dict.fromkeys(_TOLD), "data": "DATA"}
    errors = {"count": 0, "codes": {}}
    parts = {"folded": _PART, "adjusted": _PART, "withdrawn": _PART, "corrections": _CORRECTIONS}
    whole = {**dict.fromkeys(_PLAIN), **parts, "errors": errors, "items": [item]}
    answer = says(whole)
    answer = says(answer.text.replace('"DATA"', '{"amount": 1234567890123456.789, "price": 1.10, "count": 3}'))

    def waiting(url: str) -> Explanation:
        with Client(url) as client:
            return client.explain("calls", "c")

    async with scripted([answer, answer]) as (url, _), AsyncClient(url) as client:
        found = [await client.explain("calls", "c"), await asyncio.to_thread(waiting, url)]
    for explanation in found:
        data = explanation.items[0].event["data"]
        assert {name: str(value) for name, value in data.items()} == {
            "amount": "1234567890123456.789", "price": "1.10", "count": "3",
        }  # fmt: skip
        assert isinstance(data["price"], Decimal)
