"""Metrics in Prometheus's format: requests, responses, times, queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelock.api.health import NO_WINDOWS, Checkup, WindowState
from tidelock.instants import SECOND
from tidelock.ledger.feed import Feed
from tidelock.ledger.sequencedatabase import Reservations
from tidelock.ledger.sequencer import Committed, Sequencer
from tidelock.model import Answer
from tidelock.triggers.delivery import TriggerWorkers
from tidelock.triggers.outbox import Depth, read_depth
from tidelock.views.hub import HubState

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_EVENTS = (1, 10, 100, 500, 1_000, 2_500, 5_000, 10_000)
F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily)

#: route of requests that match no route
_NO_ROUTE = "none"


class Metrics:
    """The counters of one process, in a registry of their own."""

    def __init__(self, sequencer: Sequencer, feed: Feed, live: Callable[[], LiveState]) -> None:
        self.registry = registry = CollectorRegistry()
        verdicts = Counter("tidelock_events", "Events processed, by verdict", ["verdict"], registry=registry)
        # Looked up once, and present from the start: a rate needs its zero.
        self._accepted = verdicts.labels("accepted")
        self._duplicates = verdicts.labels("duplicate")
        self._conflicts = verdicts.labels("conflict")
        self._rejected = verdicts.labels("rejected")
        self._requests = Counter(
            "tidelock_requests", "HTTP requests answered", ["method", "route", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "tidelock_request_seconds", "Time to answer a request", ["route"], buckets=_SECONDS, registry=registry
        )
        #: looking up labels costs more than counting
        self._kinds: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._commit_seconds = Histogram(
            "tidelock_commit_seconds",
            "Time a commit holds the lock on the ledger's head",
            buckets=_SECONDS,
            registry=registry,
        )
        self._commit_events = Histogram(
            "tidelock_commit_events", "Events recorded per commit", buckets=_EVENTS, registry=registry
        )
        self._head = Gauge("tidelock_head_sequence", "Last sequence in the ledger", registry=registry)
        self._skipped = Gauge(
            "tidelock_skipped_sequences",
            "Sequence numbers without an event, as of the last commit by this process",
            registry=registry,
        )
        self._reader_sequence = Gauge(
            "tidelock_reader_sequence", "Sequence through which a reader is complete", ["reader"], registry=registry
        )
        self._reader_lag_sequences = Gauge(
            "tidelock_reader_lag_sequences",
            "How many sequences a reader is behind the head of the ledger",
            ["reader"],
            registry=registry,
        )
        self._reader_lag_seconds = Gauge(
            "tidelock_reader_lag_seconds",
            "Age of the oldest commit that a reader has not processed",
            ["reader"],
            registry=registry,
        )
        self._watch("tidelock_queue_events", "Events waiting to be recorded", lambda: sequencer.queued_events)
        self._watch("tidelock_ws_subscribers", "Clients of the live feed", lambda: feed.state.followers)
        self._watch("tidelock_feed_lag_events", "Events that the live feed has not read yet", lambda: feed.state.lag)
        self._windows = WindowMetrics()
        registry.register(self._windows)
        registry.register(LiveMetrics(live))
        if sequencer.numbers is not None:
            registry.register(SequenceMetrics(sequencer.numbers.reservations))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        sequencer.on_commit.append(self.committed)

    def answered(self, answer: Answer) -> None:
        if answer.accepted:
            self._accepted.inc(answer.accepted)
        if answer.duplicates:
            self._duplicates.inc(answer.duplicates)
        if answer.conflicts:
            self._conflicts.inc(answer.conflicts)
        if answer.rejected:
            self._rejected.inc(answer.rejected)

    def committed(self, committed: Committed) -> None:
        self._commit_seconds.observe(committed.seconds)
        self._commit_events.observe(committed.events)
        self._head.set(committed.head.ingress_sequence)
        self._skipped.set(committed.head.skipped)

    def looked(self, found: Checkup) -> None:
        """Values that have to be read. They stay until the next read."""
        health = found.health
        self._windows.windows = found.windows
        if health.head is not None:
            self._head.set(health.head.ingress_sequence)
        for reader in health.readers:
            self._reader_sequence.labels(reader.name).set(reader.ingress_sequence)
            self._reader_lag_sequences.labels(reader.name).set(reader.lag_sequences)
            self._reader_lag_seconds.labels(reader.name).set(reader.lag_seconds)

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        kind = (method, route, status)
        if kind not in self._kinds:
            self._kinds[kind] = self._requests.labels(method, route, str(status)), self._request_seconds.labels(route)
        count, time_taken = self._kinds[kind]
        count.inc()
        time_taken.observe(seconds)

    def text(self, accept: str) -> tuple[bytes, str]:
        """All of them, and the type they are in: OpenMetrics where a scraper asks for it, else Prometheus's own."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def _watch(self, name: str, about: str, read: Callable[[], float]) -> None:
        Gauge(name, about, registry=self.registry).set_function(read)


class WindowMetrics(Collector):
    """The metrics of the windows found last; those that are gone disappear here too."""

    def __init__(self) -> None:
        self.windows = NO_WINDOWS

    def collect(self) -> Iterator[Metric]:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        late, raised = "Rows that arrived late", "Requests that raised the watermark"
        latest = "Latest event time seen, in seconds since 1970"
        yield self._family(gauge, "buffer_size", "Rows held in the reorder buffer", lambda state: state.buffer_size)
        yield self._family(counter, "late_dropped", late, lambda state: state.late_dropped_count)
        yield self._family(counter, "watermark_emitted", raised, lambda state: state.watermark_emitted_count)
        yield self._family(gauge, "max_timestamp_seen_seconds", latest, _latest_s)
        # The names of version 0.1, kept for one more version.
        old = (
            ("late_dropped_count", "tidelock_late_dropped_total", lambda state: state.late_dropped_count),
            (
                "watermark_emitted_count",
                "tidelock_watermark_emitted_total",
                lambda state: state.watermark_emitted_count,
            ),
            ("max_timestamp_seen", "tidelock_max_timestamp_seen_seconds", _latest_s),
        )
        for name, now, value in old:
            yield self._family(gauge, name, f"Deprecated, gone in the next version: use {now}", value)
        yield GaugeMetricFamily(
            "tidelock_windows_cut",
            "1 if there are more windows than are reported (windows_told_max)",
            value=self.windows.cut,
        )

    def _family(self, kind: type[F], name: str, about: str, value: Callable[[WindowState], float | None]) -> F:
        family = kind(f"tidelock_{name}", about, labels=["window", "tenant"])
        for state in self.windows.states:
            if (found := value(state)) is not None:
                family.add_metric([state.window, state.tenant_id], found)
        return family


def _latest_s(state: WindowState) -> float | None:
    return None if state.max_timestamp_seen is None else state.max_timestamp_seen / SECOND


@dataclass(frozen=True, slots=True)
class LiveState:
    """GraphQL subscriptions and their clients."""

    hub: HubState
    connections: int


class LiveMetrics(Collector):
    """The metrics of subscriptions, read on request."""

    def __init__(self, state: Callable[[], LiveState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        hub = state.hub
        gauges = {
            "live_connections": ("GraphQL clients with a WebSocket or an event stream", state.connections),
            "views": ("Views: distinct filters with subscribers", hub.views),
            "view_subscribers": ("Subscribers of views", hub.view_subscribers),
            "live_queue_depth": ("Changes queued for subscribers", hub.queue_depth),
        }
        counters = {
            "filter_evaluations": ("Evaluations of a filter on a row", hub.filter_evaluations),
            "filter_cache_hits": (
                "Evaluations skipped because no column of the filter had changed",
                hub.filter_cache_hits,
            ),
        }
        for name, (about, value) in gauges.items():
            yield GaugeMetricFamily(f"tidelock_{name}", about, value=value)
        for name, (about, value) in counters.items():
            yield CounterMetricFamily(f"tidelock_{name}", about, value=value)


class Measured:
    """Counts and times every request that goes through it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Kept if the client disconnects before the response.
        status = 499
        started = time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except BaseException:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path_format", _NO_ROUTE)
            self._metrics.requested(scope["method"], route, status, time.monotonic() - started)


class SequenceMetrics(Collector):
    """Of one process, read on request."""

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations

    def collect(self) -> Iterator[Metric]:
        counts = self._reservations
        yield GaugeMetricFamily(
            "tidelock_sequence_remote",
            "1 while sequences come from the sequence database, 0 while the ledger assigns them",
            value=counts.remote,
        )
        commits = CounterMetricFamily(
            "tidelock_sequence_commits",
            "Commits numbered by the sequence database (remote), that asked it without success (failed), or did not "
            "ask (spared)",
            labels=["outcome"],
        )
        commits.add_metric(["remote"], counts.taken)
        commits.add_metric(["failed"], counts.failed)
        commits.add_metric(["spared"], counts.spared)
        yield commits
        yield CounterMetricFamily(
            "tidelock_sequence_seconds", "Time commits spent waiting for the sequence database", value=counts.seconds
        )
        yield GaugeMetricFamily(
            "tidelock_sequence_seconds_max",
            "Longest wait of a commit for the sequence database",
            value=counts.seconds_max,
        )


class TriggerMetrics(Collector):
    """Counted by this process, except the outbox, which all share and which is read on request."""

    def __init__(self, workers: TriggerWorkers) -> None:
        self._workers = workers
        self._depth: Depth | None = None

    async def look(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._depth = await read_depth(connection)

    def collect(self) -> Iterator[Metric]:
        transitions = CounterMetricFamily(
            "tidelock_trigger_transitions", "Rows that entered or left a trigger's condition", labels=["type"]
        )
        for event_type, count in self._workers.transitions.items():
            transitions.add_metric([event_type], count)
        yield transitions
        attempts = CounterMetricFamily(
            "tidelock_webhook_attempts", "Webhook delivery attempts, by outcome", labels=["outcome"]
        )
        for outcome, count in self._workers.attempts.items():
            attempts.add_metric([outcome], count)
        yield attempts
        if (depth := self._depth) is not None:
            outbox = GaugeMetricFamily("tidelock_outbox_depth", "Webhooks not delivered yet", labels=["status"])
            outbox.add_metric(["pending"], depth.pending)
            outbox.add_metric(["dead"], depth.dead)
            yield outbox
            yield GaugeMetricFamily(
                "tidelock_outbox_oldest_seconds",
                "Age of the oldest undelivered webhook",
                value=depth.oldest_pending_s,
            )
