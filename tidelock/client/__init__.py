"""The Python client: sending, reading, following, and verifying webhooks. It loads neither Spark nor a server.

with Client("http://127.0.0.1:8080") as client:
    client.send([{"stream": "api_calls", "customerRef": "cus_1", "quantity": "1.5"}])

async with AsyncClient("http://127.0.0.1:8080") as client:
    async for update in client.subscribe("counters", where={"metric": {"_eq": "api_calls"}}):
        ...
"""

from tidelock.client.errors import NoAnswer, Refused
from tidelock.client.explained import Corrections, ExplainedEvent, Explanation, Part
from tidelock.client.following import Update
from tidelock.client.http import AsyncClient, Client
from tidelock.client.values import CustomerUsage, Reverted, Usage, UsagePeriod, Verdict
from tidelock.triggers.signatures import InvalidSignature
from tidelock.triggers.signatures import verify as verify_webhook

__all__ = [
    "AsyncClient",
    "Client",
    "Corrections",
    "CustomerUsage",
    "ExplainedEvent",
    "Explanation",
    "InvalidSignature",
    "NoAnswer",
    "Part",
    "Refused",
    "Reverted",
    "Update",
    "Usage",
    "UsagePeriod",
    "Verdict",
    "verify_webhook",
]
