"""The preview of a revert: its figures are those that the counters have once the batch was reverted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from tests.fold.folding import Folding
from tests.recording import record, rows, sequencing
from tidelock.definitions import parse_definitions
from tidelock.fold.redefine.catalog import unit_hashes
from tidelock.instants import SECOND, format_instant, parse_rfc3339
from tidelock.ledger.sequencer import Sequencer
from tidelock.model import ALL_TENANTS, Accepted
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import Steady
from tidelock.settings import Settings
from tidelock.sources.reverting import revert_batch
from tidelock.sources.sender import Sender
from tidelock.spark.runtime import Spark
from tidelock.usage.batches import WantedRevert
from tidelock.usage.closing import PeriodStanding
from tidelock.usage.previews import RevertPreview, preview_revert
from tidelock.views.catalog import CatalogReader

Json = dict[str, Any]

_HOUR = 3600 * SECOND
_START = parse_rfc3339("2026-03-01T00:00:00Z")
TOML: Json = {
    "streams": {"declared": {"columns": {"n": "int", "kind": "string"}}},
    "meters": {
        **{
            f"calls_{name}": {"stream": "calls", "aggregation": name, "period": "day", "lateness": "6h"}
            for name in ("sum", "count", "max", "min", "last", "avg")
        },
        "kinds": {"stream": "declared", "aggregation": "unique_count", "value": "kind", "lateness": "12h"},
        "large": {"stream": "declared", "aggregation": "max", "value": "n", "where": {"n": {"_gt": 4}}, "period": "day",
                  "lateness": "1h"},
        "monthly": {"stream": "declared", "value": "n", "group_by": ["kind"], "period": "month", "lateness": "30d"},
    },
}  # fmt: skip
DEFINITIONS = parse_definitions(TOML)


def _event(chance: random.Random, number: int) -> Json:
    """An event of one of three days, often late; some do not fit their columns."""
    at = _START + chance.randrange(72) * _HOUR + number
    data = {"n": chance.choice([chance.randrange(10), chance.randrange(10), "no number"]),
            "kind": chance.choice(["a", "b", "c", "d", None])}  # fmt: skip
    stream = chance.choice(["calls", "declared"])
    own = (
        {"quantity": chance.choice([None, f"{chance.randrange(-50, 500)}.5"])} if stream == "calls" else {"data": data}
    )
    return {
        "tenantId": chance.choice(["default", "acme"]), "stream": stream, "idempotencyKey": f"k{number}",
        "customerRef": chance.choice(["ada", "bob", None]), "ts": format_instant(at),
        "batchId": chance.choice(["good", "bad", "bad", None]), **own,
    }  # fmt: skip


def _correction(chance: random.Random, event: Json, number: int) -> Json:
    """A void or an amendment of an event, of its batch or of another."""
    sent = {name: event[name] for name in ("tenantId", "stream")} | {"target": event["idempotencyKey"]}
    sent |= {"idempotencyKey": f"k{number}", "batchId": chance.choice([event["batchId"], "good"])}
    if chance.random() < 0.4:
        return sent | {"op": "void"}
    other = _event(chance, number)
    return sent | {"op": "amend"} | {name: other[name] for name in ("quantity", "data") if name in other}


async def _fill(sequencer: Sequencer, chance: random.Random) -> None:
    alive: list[Json] = []
    for number in range(160):
        if number == 100:
            # The first of three days is final from here on, for some meters.
            standing = PeriodStanding(DEFINITIONS, unit_hashes(DEFINITIONS), {}, {})
            ends = dict.fromkeys(("calls_sum", "calls_max", "calls_avg", "large"), _START + 24 * _HOUR)
            close = standing.close(ALL_TENANTS, ends)
            assert close is not None
            await sequencer.control(close)
        if alive and chance.random() < 0.3:
            event = _correction(chance, alive.pop(chance.randrange(len(alive))), number)
        else:
            event = _event(chance, number)
        (verdict,) = await record(sequencer, event, definitions=DEFINITIONS)
        assert isinstance(verdict, Accepted), verdict
        if event.get("op") != "void":
            alive.append({**event, "tenantId": event["tenantId"]})


async def _counters(database: Database) -> Mapping[tuple[str, ...], tuple[str | None, str | None]]:
    found = await rows(
        database,
        "SELECT metric, tenant_id, customer_ref, period_start, trim_scale(value)::text, trim_scale(total)::text "
        "FROM tidelock_tables.counters",
    )
    return {(metric, tenant, customer, format_instant(start)): (value, total)
            for metric, tenant, customer, start, value, total in found}  # fmt: skip


async def _previewed(database: Database, wanted: WantedRevert) -> RevertPreview:
    async with await database.connect() as connection:
        return await preview_revert(
            connection, CatalogReader(DEFINITIONS), DEFINITIONS, wanted, counters_max=None, timeout_ns=600 * SECOND
        )


async def test_every_counter_becomes_what_the_preview_says_and_no_other_changes(
    spark: Spark, database: Database
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    wanted = WantedRevert("bad", "default")
    with Folding(spark, database, TOML) as folding:
        async with sequencing(database) as sequencer:
            await _fill(sequencer, random.Random(seed))
            await asyncio.to_thread(folding.catch_up)
            before, preview = await _counters(database), await _previewed(database, wanted)
            async with Steady(database, "test", patience=database.patience) as steady:
                sender = Sender(sequencer, Settings(), streams_open=True)
                done = await revert_batch(steady, sender, DEFINITIONS, wanted, lambda *_: None)
        assert (done.voided, done.left_count) == (preview.voids, preview.left_count)
        await asyncio.to_thread(folding.catch_up)
        after, again = await _counters(database), await _previewed(database, wanted)
    expected = dict(before)
    for each in preview.counters:
        place = each.metric, each.tenant_id, each.customer_ref, each.period_start
        assert before[place] == (each.value, each.total)
        expected[place] = each.value_after, each.total_after
    assert after == expected
    assert {each.metric for each in preview.counters} == set(TOML["meters"])
    assert (again.voids, again.counters) == (0, [])
    assert again.duplicates == preview.duplicates + preview.voids
