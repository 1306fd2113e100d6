"""Bytewax beside the fold: the same windows of a Parquet export, to a local file. Prints what it did as JSON.

It runs in a virtual environment of its own and knows nothing of ours: `PYTHON bytewax_peer.py EXPORT OUT EVENTS SIZE_S
TOLERANCE_S CORES`. One worker: a second would wait for the same lock of Python.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import bytewax.operators as op
import pyarrow.dataset as ds
from bytewax.connectors.files import FileSink
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower, fold_window
from bytewax.testing import run_main

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = ["tenant_id", "customer_ref", "occurred_at", "quantity"]

#: key, and when with how much
_Event = tuple[str, tuple[datetime, Decimal]]


class _Partition(StatelessSourcePartition[_Event]):
    def __init__(self, batches: Iterator[list[_Event]]) -> None:
        self._batches = batches

    def next_batch(self) -> list[_Event]:
        return next(self._batches)


class _Export(DynamicSource[_Event]):
    """In the order of the ledger, read and decoded before the clock runs: it is the windows that are timed."""

    def __init__(self, directory: str, events: int) -> None:
        found = ds.dataset(directory).sort_by("ingress_sequence").head(events, columns=_COLUMNS)
        self.events = found.num_rows
        self._batches = [_events(batch.to_pydict()) for batch in found.to_batches(1_000)]

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Partition:
        return _Partition(iter(self._batches))


def _events(columns: dict[str, list[object]]) -> list[_Event]:
    return [
        (f"{tenant}/{customer}", (_EPOCH + timedelta(microseconds=int(str(at)) // 1_000), Decimal(str(quantity))))
        for tenant, customer, at, quantity in zip(*(columns[name] for name in _COLUMNS), strict=True)
    ]


def _line(window: tuple[str, tuple[int, tuple[int, Decimal]]]) -> tuple[str, str]:
    key, (number, (events, quantity)) = window
    return key, f"{key},{number},{events},{quantity}"


def main(export: str, out: str, events: int, size_s: int, tolerance_s: int) -> dict[str, object]:
    source = _Export(export, events)
    clock = EventClock(
        ts_getter=lambda value: value[0],
        wait_for_system_duration=timedelta(seconds=tolerance_s),
        # Of time only events tell, as with us: none passes while it computes.
        now_getter=lambda: _EPOCH,
        to_system_utc=lambda _: None,
    )
    windower = TumblingWindower(length=timedelta(seconds=size_s), align_to=_EPOCH)
    flow = Dataflow("windows")
    found = fold_window(
        "fold",
        op.input("read", flow, source),
        clock,
        windower,
        builder=lambda: (0, Decimal(0)),
        folder=lambda state, value: (state[0] + 1, state[1] + value[1]),
        merger=lambda one, other: (one[0] + other[0], one[1] + other[1]),
        ordered=False,
    )
    lines = op.map("line", found.down, _line)
    op.output("write", lines, FileSink(Path(out)))
    Path(out).unlink(missing_ok=True)
    started = time.perf_counter()
    run_main(flow)
    seconds = time.perf_counter() - started
    counts = [int(line.split(",")[2]) for line in Path(out).read_text().splitlines()]
    return {"seconds": seconds, "events": source.events, "windows": len(counts), "within": sum(counts)}


if __name__ == "__main__":
    export, out, *numbers = sys.argv[1:]
    print(json.dumps(main(export, out, *map(int, numbers[:3]))))
