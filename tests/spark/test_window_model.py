"""Windows, ordered output and watermarks of random ledgers are the model's, however cut and whoever reads them."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.conftest import Databases
from tests.ledgers import write_ledger
from tests.model import State, fold
from tests.spark.folding import Folding, differences, expected
from tests.spark.ledgers import COMPUTED
from tests.spark.packs import drawn, pack
from tests.spark.timelines import controls, timed_definitions, timed_ledgers
from tidelock.fold.segments import decode
from tidelock.fold.session import Spark
from tidelock.ledger.database import Database

#: how likely commits are one range, and up to how many events the driver reads
WAYS = [(0.0, 10**9), (0.7, 10**9), (1.0, 1), (0.7, 1)]
#: what is stored of a window and tenant, as the model tells it
METRICS = (
    "watermark", "closed_through", "buffer_size", "late_dropped_count", "watermark_emitted_count",
    "max_timestamp_seen", "last_row_at", "released",
)  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize("turn", range(int(os.environ.get("LAW_TURNS", "2"))))
def test_random_windows_are_the_models(spark: Spark, databases: Databases, turn: int) -> None:
    number = int(os.environ.get("LAW_SEED", random.randrange(10**6))) + turn
    print(f"LAW_SEED={number}")
    chance = Random(number)
    toml = drawn(timed_definitions(), 10, number)[-1]
    some = drawn(timed_ledgers(), 80, number)
    packed = pack(some, chance, controls=controls(toml), scattered=6)
    state = fold(packed.events, toml, COMPUTED)
    wanted = expected(state)
    stored: list[Sequence[str]] = []
    with databases() as database:
        write_ledger(database, packed.events, packed.ends)
        for joined, small_events in WAYS:
            ranges = packed.cut(lambda joined=joined: chance.random() < joined)
            with Folding(spark, database, toml, small_events=small_events) as folding:
                found = folding.fold(ranges)
                assert differences(found, wanted) == {}
                assert standings(database) == {
                    place: {name: getattr(metrics, name) for name in METRICS} | by_arrival(toml, place)
                    for place, metrics in state.metrics.items()
                }
                assert raises(database) == followed(state, toml)
                stored.append(found.stored)
    assert all(rows == stored[0] for rows in stored), "cut otherwise, something else is stored"


def by_arrival(toml: Any, place: tuple[str, str]) -> dict[str, None]:
    """Of windows by arrival no watermark is stored: it is the ledger's."""
    window = toml["windows"].get(place[0])
    timed = window is None or window.get("eventtime", {}).get("enabled")
    return {} if timed else {"watermark": None}


def standings(database: Database) -> dict[tuple[str, str], dict[str, int | None]]:
    with database.connect_sync() as connection:
        query = f'SELECT "window", tenant_id, {", ".join(METRICS)} FROM tidelock_tables.watermarks'
        return {
            (name, tenant): dict(zip(METRICS, values, strict=True))
            for name, tenant, *values in connection.execute(query.encode())
        }


def raises(database: Database) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """The watermarks that followers of ordered output are told."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with database.connect_sync() as connection:
        query = "SELECT segment FROM changes WHERE table_name = 'watermarks' ORDER BY last_sequence, part"
        for (segment,) in connection.execute(query):
            for row in decode(segment).to_pylist():
                place = row["new"]["window"], row["tenant_id"]
                found.setdefault(place, []).append((row["source_timestamp"], row["new"]["watermark"]))
    return found


def followed(state: State, toml: Any) -> dict[tuple[str, str], list[tuple[int, int]]]:
    streams = toml["streams"]
    live = {f"{name}_ordered" for name, stream in streams.items() if stream.get("live", True)}
    return {place: raised for place, raised in state.raises.items() if place[0] in live and raised}
