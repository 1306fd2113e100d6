"""Metrics of triggers: transitions, attempts, and what waits in the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidelock.triggers.outbox import Depth, read_depth


class Counts(Protocol):
    """What a process counts of triggers."""

    @property
    def transitions(self) -> Any: ...

    @property
    def attempts(self) -> Any: ...


class TriggerMetrics(Collector):
    """Counted by this process, but for the outbox, which all share: it is looked at when somebody asks."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._depth: Depth | None = None

    async def look(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._depth = await read_depth(connection)

    def collect(self) -> Iterator[Metric]:
        transitions = CounterMetricFamily(
            "tidelock_trigger_transitions", "Rows that entered or left the condition of a trigger", labels=["type"]
        )
        for event_type, count in self._counts.transitions.items():
            transitions.add_metric([event_type], count)
        yield transitions
        attempts = CounterMetricFamily(
            "tidelock_webhook_attempts", "Attempts to deliver webhooks, by what came of them", labels=["outcome"]
        )
        for outcome, count in self._counts.attempts.items():
            attempts.add_metric([outcome], count)
        yield attempts
        if (depth := self._depth) is not None:
            outbox = GaugeMetricFamily("tidelock_outbox_depth", "Webhooks that are not delivered", labels=["status"])
            outbox.add_metric(["pending"], depth.pending)
            outbox.add_metric(["dead"], depth.dead)
            yield outbox
            yield GaugeMetricFamily(
                "tidelock_outbox_oldest_seconds",
                "How long the oldest webhook that is not delivered has waited",
                value=depth.oldest_pending_s,
            )
