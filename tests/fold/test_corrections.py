"""Corrections by example, through Postgres and Spark, each compared with the model too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import Any

import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding, Picture, Toml, differences, expected
from tests.fold.test_closing import with_hashes
from tests.ledgers import write_ledger
from tests.model import Event, fold
from tests.model.samples import amend, recorded, void
from tests.model.test_closing import METER, closes, used
from tidelock.definitions import parse_definitions
from tidelock.fold.kernel.outcomes import Outcome
from tidelock.fold.ranges import CORRECTED_EVENTS, next_range
from tidelock.fold.redefine.past import PAST
from tidelock.fold.redefine.shadow import Plan, Shadow
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import COUNTERS, SCHEMA

AGGREGATIONS = ("sum", "count", "max", "min", "last", "avg")
#: what nobody can have sent as a quantity, but is one all the same
LARGE = Decimal("999999999999999999.999999999")


def metered(**more: Any) -> dict[str, Any]:
    """A meter of each aggregation over one stream, with groups."""
    meters = {
        name: METER | {"stream": "s", "aggregation": name, "group_by": "data.region", **more} for name in AGGREGATIONS
    }
    return meters | {"months": METER | {"stream": "s", "period": "week"}, "quiet": {"stream": "s", "live": False}}


def spent(day: str, quantity: Any, region: str | None = "eu", **more: Any) -> dict[str, Any]:
    return used(f"2026-03-{day}", 1, data={"region": region}, **more) | {"quantity": Decimal(quantity)}


TOML: dict[str, Any] = {"meters": metered()}
#: collections, and in the comments their sequences
GIVEN = [
    [spent("20", 5), spent("21", 7, "us"), spent("22", -3), spent("22", 9)],  # 1-4
    [void(4), amend(3, 4)],  # 5, 6: in time; the latest and the least
    [spent("30", 1), spent("10", 2), void(1), amend(6, 8)],  # 7-10: what is older than two days is late
    [amend(2, data={"region": "eu"}), void(8)],  # 11, 12: into another group, and of what was late itself
    [amend(7) | {"quantity": LARGE}, amend(13) | {"quantity": -LARGE}, void(14)],  # 13-15: a chain in one collection
    [spent("31", 6, None), spent("31", 6, None, customer_ref="d"), amend(16, 3)],  # 16-18
    [closes("2026-04-01T00:00:00Z", meters=TOML["meters"])],  # 19
    [void(18), amend(17, 1), spent("31", 2)],  # 20-22: of a closed period
    [amend(22, 5), void(21)],  # 23, 24
]


def events_of(toml: Toml, *given: Any) -> list[Event]:
    return with_hashes(recorded(*given), toml)


def test_counters_groups_and_adjustments_are_the_models_however_they_are_folded(
    spark: Spark, databases: Databases
) -> None:
    events = events_of(TOML, *GIVEN)
    wanted = expected(fold(events, TOML))
    with databases() as database:
        ends = write_ledger(database, events)
        found = [
            folded(spark, database, ends),
            folded(spark, database, [ends[2], ends[5], *ends[6:]]),
            # As of a large ledger: slices are read by Spark, customer by customer.
            folded(spark, database, ends[5:], small_events=0, portion_events=1),
        ]
    assert [differences(picture, wanted) for picture in found] == [{}, {}, {}]
    assert found[0].stored == found[1].stored == found[2].stored
    reasons = {row["reason"] for (table, _, _), (_, row) in found[0].rows.items() if table == "adjustments"}
    assert reasons == {"'late'", "'void'", "'amend'", "'closed'"}


def folded(spark: Spark, database: Database, ends: list[int], **options: Any) -> Picture:
    with Folding(spark, database, TOML, **options) as folding:
        return folding.fold(zip([0, *ends], ends, strict=False))


def test_corrections_are_no_rows_of_windows_and_latest_rows_and_each_window_says_so(
    spark: Spark, databases: Databases
) -> None:
    count = {"n": "count(*)"}
    toml: dict[str, Any] = {
        "streams": {
            "s": {
                "columns": {"ts": "bigint", "region": "string"},
                "eventtime": {"column": "ts", "type": "unixtimestamp_ns"},
                "ordered": True,
            },
            "keyed": {"key": "data.id"},
        },
        "windows": {
            # Each shares its error rows' keys: with the stream, and with a meter.
            "s": {"stream": "s", "window": {"tumbling": "10ns"}, "eventtime": {"enabled": True}, "select": count},
            "m": {"stream": "s", "window": {"count": 2}, "select": count},
            "arrived": {"stream": "s", "window": {"tumbling": "250ns"}, "select": count},
        },
        "meters": {
            "m": METER | {"stream": "s", "aggregation": "sum", "group_by": "region"},
            "keyed": METER | {"aggregation": "max"},
        },
    }  # fmt: skip

    def timed(at: Any, quantity: int | None = None) -> dict[str, Any]:
        quantity_said = {} if quantity is None else {"quantity": Decimal(quantity)}
        return {"data": {"ts": at, "region": "eu"}, **quantity_said}

    def kept(number: int, quantity: int) -> dict[str, Any]:
        return {"stream": "keyed", "data": {"id": number}, "quantity": Decimal(quantity)}

    events = events_of(
        toml,
        [timed(5, 1), timed(6, 2), kept(1, 5), kept(2, 7)],  # 1-4
        [void(1), amend(2, data={"ts": 99, "region": "us"})],  # 5, 6
        [amend(6, data={"ts": "x"}), timed(7), timed(8, 3)],  # 7-9: no time, and no quantity
        [void(3, stream="keyed"), amend(4, 9, stream="keyed"), amend(11, data={}, stream="keyed")],  # 10-12
        [timed(30, 4), amend(9, data={"ts": 8}), amend(8, data={"ts": 1}), {"stream": "other"}],  # 13-16
    )
    wanted = expected(fold(events, toml), toml)
    with databases() as database:
        ends = write_ledger(database, events)
        for cuts, options in ((ends, {}), (ends[2:], {"small_events": 0})):
            with Folding(spark, database, toml, **options) as folding:
                assert differences(folding.fold(zip([0, *cuts], cuts, strict=False)), wanted) == {}
    codes = {(row["source"], row["code"]) for (table, _, _), (_, row) in wanted.rows.items() if table == "error_rows"}
    ignored = {(f"'{name}'", "'correction_ignored'") for name in ("s", "m", "arrived", "s_ordered")}
    assert codes == {
        *ignored, ("'s'", "'invalid_event_time'"), ("'m'", "'missing_quantity'"), ("'keyed'", "'invalid_column'")
    }  # fmt: skip


def test_a_large_range_ends_before_the_first_commit_with_a_correction(databases: Databases) -> None:
    """Each commit has 4,000 events; the fourth corrects one of them, and so does the last."""
    size = 4_000
    many = [[{"idempotency_key": f"{number}"} for number in range(size)] for _ in range(7)]
    many[3][1], many[6][size - 1] = void(1), void(2)
    with databases() as database, closing(Store(database, SCHEMA, "fold")) as store:
        write_ledger(database, recorded(*many))

        def ends(events_max: int, through: int | None = None) -> list[int]:
            found, lo = [], 0
            while (following := next_range(store, lo, events_max, through)) is not None:
                found.append(lo := following.hi)
            return [end // size for end in found]

        assert CORRECTED_EVENTS == 10_000
        assert ends(100_000) == [3, 5, 7]
        assert ends(12_000) == [3, 5, 7]
        assert ends(100_000, 6 * size) == [3, 5, 6]
        assert ends(9_000) == [2, 4, 6, 7]


def test_a_fold_that_fails_amid_a_range_with_corrections_begins_it_again(spark: Spark, databases: Databases) -> None:
    events = events_of(TOML, *GIVEN[:6])
    wanted = expected(fold(events, TOML))
    with databases() as database:
        last = write_ledger(database, events)[-1]
        with Folding(spark, database, TOML, portion_events=1) as folding:
            with failing(folding.store), pytest.raises(RuntimeError, match="on the way"):
                folding.advance([(0, last)])
            assert folding.picture().rows == {}
            assert differences(folding.fold([(0, last)]), wanted) == {}


@contextmanager
def failing(store: Store) -> Iterator[None]:
    """A store that fails when the counters of the second portion are to be written."""
    written = store.write

    def write(hi: int, outcomes: Iterator[Outcome], *, changes: bool) -> int:
        def some() -> Iterator[Outcome]:
            portions = 0
            for outcome in outcomes:
                portions += outcome.table.name == COUNTERS.name
                if portions == 2:
                    raise RuntimeError("on the way")
                yield outcome

        return written(hi, some(), changes=changes)

    store.write = write  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        store.write = written  # type: ignore[method-assign]


def test_the_past_of_a_corrected_counter_is_folded_also_from_amid_a_commit(spark: Spark, databases: Databases) -> None:
    events = events_of(TOML, *GIVEN)
    with databases() as database:
        write_ledger(database, events, [6, 15, 18, 19, 24])
        for sequence in (5, 9, 14, 21):
            wanted = fold(events[:sequence], TOML).table("counters")
            with database.connect_sync() as connection:
                for statement in PAST.drop():
                    connection.execute(statement.encode())
            plan = Plan(parse_definitions(TOML), tuple(f"meters.{name}" for name in TOML["meters"]))
            with closing(Shadow(spark, database, plan, PAST)) as shadow:
                while shadow.step(1000, sequence) is not None:
                    pass
                shadow.step_within(sequence)
            assert values(database, PAST.schema) == {
                (tenant, key): (row["value"], row["total"]) for (tenant, key), row in wanted.items()
            }


def values(database: Database, schema: str) -> Mapping[tuple[str, str], tuple[Decimal | None, Decimal | None]]:
    with database.connect_sync() as connection:
        rows = connection.execute(f'SELECT tenant_id, "$key", value, total FROM {schema}.counters'.encode()).fetchall()
    return {(tenant, key): (value, total) for tenant, key, value, total in rows}
