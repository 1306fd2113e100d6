"""Metrics of the sequence database: whether it numbers the events, and what asking it costs a commit."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidelock.ledger.sequencedatabase import Reservations


class SequenceMetrics(Collector):
    """Of one process, looked up when somebody asks."""

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations

    def collect(self) -> Iterator[Metric]:
        counts = self._reservations
        yield GaugeMetricFamily(
            "tidelock_sequence_remote",
            "1 while the sequence database numbers the events, 0 while the ledger does",
            value=counts.remote,
        )
        commits = CounterMetricFamily(
            "tidelock_sequence_commits",
            "Commits that had numbers from there (remote), asked for them in vain (failed) or did not ask (spared)",
            labels=["outcome"],
        )
        commits.add_metric(["remote"], counts.taken)
        commits.add_metric(["failed"], counts.failed)
        commits.add_metric(["spared"], counts.spared)
        yield commits
        yield CounterMetricFamily(
            "tidelock_sequence_seconds", "Time that commits waited for the sequence database", value=counts.seconds
        )
        yield GaugeMetricFamily(
            "tidelock_sequence_seconds_max", "Longest that a commit waited for it", value=counts.seconds_max
        )
