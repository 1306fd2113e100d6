"""Usage on the command line: of one customer, and of all of them as an export, now or as of a sequence."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from pathlib import Path

import pytest

from tests.cli.commandline import json_lines, run
from tests.fold import folded
from tests.fold.redefine.definition_changes import BASE, FORMULAS, _calculated, fold_all, ledger, leftovers, lend
from tests.ledgers import write_ledger
from tests.model import fold
from tests.model.values import decimal_text, instant_text
from tidelock.definitions import parse_definitions
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

METERS = parse_definitions({"meters": {"calls": {"group_by": "data.region"}, "daily": {"period": "day"}}})
MARCH, APRIL = "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"


@pytest.fixture
def used(database: Database) -> Database:
    """Counters of some customers."""

    async def write() -> None:
        async with await database.connect() as connection:
            await folded.define(connection, METERS)
            for customer in ("b", "a, inc", ""):
                await folded.counter(connection, "default", "calls", customer, MARCH, value="5", total="7.5")
            await folded.counter(connection, "default", "calls", "b", APRIL, value="1")
            await folded.counter(connection, "default", "calls", "b", MARCH, value="3", group_key=None)
            await folded.counter(connection, "default", "calls", "b", MARCH, value="2", group_key="eu")
            await folded.counter(connection, "default", "daily", "b", "2026-03-31T00:00:00Z", value="4")
            await folded.counter(connection, "acme", "calls", "z", MARCH, value="9")

    asyncio.run(write())
    return database


def test_what_all_customers_used_is_exported_by_customer_period_and_group(used: Database) -> None:
    result = run(used, "usage", "--period", "2026-03", "--format", "csv")
    assert result.exit_code == 0, result.output
    assert (
        result.stdout.splitlines()[0]
        == "metric,tenantId,customerRef,periodStart,periodEnd,group,value,adjustment,total"
    )
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["metric"], row["customerRef"], row["value"], row["total"]) for row in rows] == [
        ("calls", "", "5", "7.5"),
        ("calls", "a, inc", "5", "7.5"),
        ("calls", "b", "5", "7.5"),
        ("daily", "b", "4", "4"),
    ]
    assert '\ncalls,default,"",2026-03-01T00:00:00Z,' in result.stdout
    groups = json_lines(run(used, "usage", "calls", "--group", "--format", "json"))
    assert [(row["customerRef"], row["group"], row["value"]) for row in groups] == [("b", None, "3"), ("b", "eu", "2")]
    lines = json_lines(run(used, "usage", "--metric", "calls", "--tenant", "acme", "--json"))
    assert [(row["tenantId"], row["customerRef"], row["value"]) for row in lines] == [("acme", "z", "9")]
    shown = run(used, "usage", "--period", "2026-04")
    assert "2026-05-01T00:00:00Z" in shown.stdout
    one = json_lines(run(used, "usage", "calls", "b", "--period", "2026-03", "--json"))
    assert [item["total"] for item in one[0]["items"]] == ["7.5"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["cals"], 'there is no metric "cals"'),
        (["calls", "--metric", "calls"], "METRIC and --metric are the same"),
        (["daily", "--group"], "daily has no groups"),
        (["--period", "March"], "--period is a month as 2026-10"),
        (["--period", "2026-03", "--from", MARCH], "--period is short for --from and --to"),
        (["--as-of", "1"], "asOf must be a sequence from 1 to 0"),
    ],
)
def test_what_cannot_be_exported_is_said(used: Database, given: list[str], said: str) -> None:
    result = run(used, "usage", *given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())


def test_all_customers_are_exported_as_of_a_sequence_amid_a_commit(
    spark: Spark, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lend(spark, monkeypatch)
    monkeypatch.setattr("tidelock.cli.usage.stop_on_signals", threading.Event)
    monkeypatch.chdir(tmp_path)
    events = ledger()
    write_ledger(database, events, [len(events)])
    fold_all(spark, database, BASE)
    for sequence in (2, 7, len(events)):
        state = fold(events[:sequence], BASE, _calculated(BASE, FORMULAS))
        wanted = sorted(
            (row["metric"], row["customer_ref"], instant_text(row["period_start"]), decimal_text(row["total"]))
            for (tenant, _), row in state.table("counters").items()
            if tenant == "default"
        )
        found = json_lines(run(database, "usage", "--as-of", sequence, "--json"))
        told = [(row["metric"], row["customerRef"], row["periodStart"], row["total"]) for row in found]
        assert sorted(told) == wanted, sequence
    assert leftovers(database) == []
