"""Meters that count distinct values, by example: which values are one, and late and closed ones."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

from tests.conftest import Databases
from tests.fold.folding import Folding, Picture, Toml
from tests.fold.test_closing import with_hashes
from tests.ledgers import write_ledger
from tests.model import Event
from tests.model.samples import alone, at
from tests.model.test_closing import closes
from tidelock.spark.runtime import Spark

UNIQUE = {"aggregation": "unique_count", "lateness": "1h"}
COLUMNS = {
    "s": "string", "i": "int", "d": "decimal(9,3)", "x": "double", "b": "boolean", "t": "timestamp", "day": "date",
}  # fmt: skip
#: by column, values of which some are the same, and how many are not
TYPED: dict[str, tuple[list[Any], int]] = {
    "s": (["a", "b", "a", "", "1", 1], 4),
    "i": ([1, "1", 1.0, 2, -0, 0], 3),
    "d": ([1.5, "1.50", 15e-1, 0, -3, "-3.000"], 3),
    "x": ([0.1, "0.1", 0.0, -0.0, 1e22, 10**22], 3),
    "b": ([True, "true", False, True, True, True], 2),
    "t": (
        ["2026-03-01T00:00:00Z", "2026-03-01T01:00:00+01:00", "2026-03-01T00:00:00.5Z", *["2026-03-02T00:00:00Z"] * 3],
        3,
    ),
    "day": (["2026-03-01", "2026-03-01", "2024-02-29", "2024-02-29", "2024-02-29", "2024-02-29"], 2),
}  # fmt: skip
#: JSON at a path: a string counts by its characters, a number in plain notation
LOOSE = ['"a"', '"\\u0061"', "1", "1.0", "10e-1", '"1"', "1.5", "true", '{"a": 1}', "[]", '"é"']
LOOSE_DISTINCT = 7


def test_values_are_the_same_where_their_texts_are(spark: Spark, databases: Databases) -> None:
    toml: Toml = {
        "streams": {"typed": {"columns": COLUMNS}},
        "meters": {
            **{name: {"stream": "typed", "value": name, **UNIQUE} for name in COLUMNS},
            "loose": {"value": "data.v", "group_by": "resource_id", **UNIQUE},
            "quantities": {"stream": "loose", **UNIQUE},
            "customers": {"stream": "loose", "value": "customer_ref", **UNIQUE},
            "sums": {"stream": "loose", "value": "quantity", "aggregation": "sum"},
        },
    }
    given: list[dict[str, Any]] = [
        {"stream": "typed", "data": {name: values[number] for name, (values, _) in TYPED.items()}}
        for number in range(6)
    ]
    given.append({"stream": "typed", "data": {"s": None}})
    given += [
        {"data": f'{{"v": {text}}}', "resource_id": "ab"[number % 2], "quantity": Decimal(number % 4) / 2}
        for number, text in enumerate(LOOSE)
    ]
    given += [{"data": '{"v": null}', "quantity": Decimal("1.50")}, {"data": "7"}]
    events = alone(*given, stream="loose")
    small = folded(spark, databases, events, toml)
    found = {row["metric"]: row for row in rows(small, "counters")}
    assert {name: found[repr(name)]["value"] for name in COLUMNS} == {
        name: f"{number} decimal" for name, (_, number) in TYPED.items()
    }
    assert found["'loose'"]["value"] == f"{LOOSE_DISTINCT} decimal"
    assert found["'quantities'"]["value"] == "4 decimal"
    assert found["'customers'"]["value"] == "1 decimal"
    assert found["'loose'"]["agg_count"] == repr(len(LOOSE))
    assert {found["'loose'"][f"agg_{name}"] for name in ("sum", "max", "min", "last")} == {"None"}
    assert found["'sums'"]["agg_sum"] == found["'sums'"]["value"] == "9 decimal"
    groups = {row["group_key"]: (row["value"], row["agg_count"]) for row in rows(small, "counter_groups")}
    assert groups == {"'a'": ("5 decimal", "6"), "'b'": ("4 decimal", "5")}
    errors = sorted((row["source"], row["code"], row["message"]) for row in rows(small, "error_rows"))
    told = {name: f'"{name}" is missing' for name in COLUMNS} | {"quantities": '"quantity" is missing'}
    told["sums"] = f"{told['quantities']}, or no number below 10^19 with at most nine decimals"
    assert errors == [
        *sorted((repr(name), "'missing_quantity'", repr(message)) for name, message in told.items() if name < "loose"),
        *[("'loose'", "'missing_quantity'", repr('"data.v" is missing'))] * 2,
        *sorted((repr(name), "'missing_quantity'", repr(message)) for name, message in told.items() if name > "loose"),
    ]  # fmt: skip
    large = folded(spark, databases, events, toml, small_events=1, ranges=1)
    assert large.rows == small.rows
    assert large.stored == small.stored, "whoever folds, and however it is cut"
    assert list(large.changes) == list(small.changes)


def test_late_values_and_those_behind_a_close_are_in_the_total(spark: Spark, databases: Databases) -> None:
    meter = {**UNIQUE, "value": "data.user", "period": "month"}
    toml: Toml = {"meters": {"seen": meter}}

    def seen(user: str, day: str, **more: Any) -> dict[str, Any]:
        return {"data": {"user": user}, "occurred_at": at(f"2026-03-{day}T00:00:00Z"), "stream": "seen", **more}

    given = [
        seen("a", "10"), seen("b", "09"), seen("a", "08"), seen("b", "11"), seen("c", "01"), seen("c", "12"),
        closes("2026-04-01T00:00:00Z", meters=toml["meters"]),
        seen("a", "20"), seen("d", "20"), seen("d", "21", customer_ref="new"),
    ]  # fmt: skip
    found = folded(spark, databases, with_hashes(alone(*given), toml), toml)
    counters = {row["customer_ref"]: row for row in rows(found, "counters")}
    assert [counters["'c'"][name] for name in ("value", "total", "agg_count")] == ["3 decimal", "4 decimal", "3"]
    assert [counters["'new'"][name] for name in ("value", "total", "watermark_ts")] == [
        "0 decimal",
        "1 decimal",
        "None",
    ]
    amounts = {int(row["ingress_sequence"]): (row["reason"], row["amount"]) for row in rows(found, "adjustments")}
    assert amounts == {
        2: ("'late'", "1 decimal"), 3: ("'late'", "0 decimal"), 5: ("'late'", "1 decimal"),
        8: ("'closed'", "0 decimal"), 9: ("'closed'", "1 decimal"), 10: ("'closed'", "1 decimal"),
    }  # fmt: skip
    (stated,) = rows(found, "statements")
    assert (stated["value"], stated["total"], stated["event_count"]) == ("3 decimal", "3 decimal", "6")


def rows(picture: Picture, table: str) -> list[dict[str, str]]:
    return [dict(row) for place, (_, row) in sorted(picture.rows.items()) if place[0] == table]


def folded(
    spark: Spark, databases: Databases, events: list[Event], toml: Toml, *, ranges: int = 3, **options: Any
) -> Picture:
    with databases() as database:
        ends = write_ledger(database, events)
        bounds = [0, *ends[len(ends) // ranges - 1 :: max(len(ends) // ranges, 1)], ends[-1]]
        controls = [event.ingress_sequence for event in events if event.stream == "_tidelock"]
        bounds = sorted({*bounds, *controls, *(each - 1 for each in controls)})
        with Folding(spark, database, toml, **options) as folding:
            return folding.fold(pairwise(bounds))
