"""Comparison: what other definitions would change, of every counter, without changing anything."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.commandline import json_lines, run
from tests.fold.redefine.definition_changes import BASE, change, changed, leftovers, lend, picture, send
from tests.serving import Start
from tidelock.definitions import parse_definitions
from tidelock.fold.redefine.comparison import compared
from tidelock.postgres.database import Database
from tidelock.settings.groups import SparkSettings
from tidelock.spark.runtime import Spark

#: `calls` as the tables have it but for its aggregation, and a new one; `typed_max` is gone
FILE = """
[streams.things]
key = "resource_id"
[streams.typed]
key = "n"
columns = { n = "bigint", region = "string" }
calculated = { twice = "n * 2" }
[meters.calls]
aggregation = "count"
period = "day"
lateness = "1h"
group_by = "data.region"
[meters.users]
stream = "calls"
aggregation = "unique_count"
value = "customer_ref"
"""


def test_every_counter_that_would_differ_is_listed_the_greatest_difference_first(
    spark: Spark, folded: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lend(spark, monkeypatch)
    file = tmp_path / "new.toml"
    file.write_text(FILE)
    before = picture(folded)
    rows = json_lines(run(folded, "meters", "diff", file, "--data", tmp_path, "--json"))
    assert {row["metric"] for row in rows} == {"calls", "users", "typed_max"}
    sizes = [abs(float(row["difference"])) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    calls = {(row["tenantId"], row["customerRef"]): row for row in rows if row["metric"] == "calls"}
    assert calls["other", "c"] == {
        "tenantId": "other", "metric": "calls", "customerRef": "c", "periodStart": "2026-03-10T00:00:00Z",
        "valueBefore": "4", "valueAfter": "1", "totalBefore": "4", "totalAfter": "1", "difference": "-3",
    }  # fmt: skip
    gone = next(row for row in rows if row["metric"] == "typed_max")
    assert (gone["valueAfter"], gone["totalAfter"]) == (None, None)
    new = next(row for row in rows if row["metric"] == "users")
    assert (new["valueBefore"], new["valueAfter"], new["difference"]) == (None, "1", "1")
    written = run(folded, "meters", "diff", file, "--data", tmp_path, "--csv")
    assert [row["customerRef"] for row in csv.DictReader(io.StringIO(written.stdout))] == [
        row["customerRef"] for row in rows
    ]
    shown = run(folded, "meters", "diff", file, "--data", tmp_path)
    assert f"{len(rows)} counters would differ" in shown.stdout
    assert "tidelock replay" in shown.stdout + shown.stderr
    # Nothing has changed, and nothing is left.
    assert picture(folded) == before
    assert leftovers(folded) == []


def test_what_is_compared_is_what_a_replay_then_makes(spark: Spark, folded: Database) -> None:
    toml = changed(meters__calls={"lateness": "0s", "period": "hour"})
    send(folded, {"stream": "calls", "customerRef": "c", "quantity": 5, "ts": "2026-03-10T13:10:00Z"})
    # What the fold has yet to come to is not compared.
    with comparing(spark, folded, toml) as found:
        assert found is not None
        foreseen = {(row.metric, row.customer_ref, row.period_start): row.value_after for row in found.rows()}
        assert found.meters == ["calls"]
    assert len(foreseen) > 3
    with comparing(spark, folded, BASE) as found:
        assert found is not None
        assert (list(found.meters), list(found.rows())) == ([], [])
    stop = threading.Event()
    stop.set()
    with comparing(spark, folded, toml, stop=stop) as found:
        assert found is None
    assert leftovers(folded) == []
    change(spark, folded, toml)
    with comparing(spark, folded, toml) as found:
        assert found is not None
        assert list(found.meters) == []


async def test_over_http_one_runs_at_a_time_and_lists_what_differs(folded: Database, jars: Path, start: Start) -> None:
    own = SparkSettings(master="local[2]", driver_memory=1 << 30, jars=jars / "jars")
    serving = start(database_url=folded.url, definitions=parse_definitions(BASE), spark=own)
    async with serving as server, httpx.AsyncClient(base_url=server.url) as api:

        async def asked(method: str, **options: Any) -> tuple[int, dict[str, Any]]:
            answer = await api.request(method, "/v1/meters/diff", **options)
            return answer.status_code, answer.json()

        wanted = {"json": {"definitions": FILE, "metric": "calls"}}
        assert (await asked("GET"))[1]["state"] == "none"
        for body, status, field in (
            ({"definitions": "[meters"}, 422, "definitions"),
            ({"definitions": FILE, "metric": "nowhere"}, 422, "metric"),
            ({"definitions": 5}, 400, None),
        ):
            found, told = await asked("POST", json=body)
            assert (found, told["error"]["field"]) == (status, field), told
        assert (await asked("POST", **wanted))[0] == 202
        status, told = await asked("POST", **wanted)
        assert (status, told["error"]["code"]) == (409, "already_running")
        assert (await asked("DELETE"))[1]["state"] == "stopped"
        as_csv = {"accept": "text/csv"}
        assert (await asked("GET", headers=as_csv))[0] == 404

        # The one that was stopped is waited for.
        assert (await asked("POST", **wanted))[0] == 202
        async with asyncio.timeout(120):
            while (state := (await asked("GET"))[1])["state"] == "running":  # noqa: ASYNC110  (it is the server who knows)
                await asyncio.sleep(0.05)
        assert (state["state"], state["meters"], state["error"]) == ("done", ["calls"], None), state
        assert state["count"] == len(state["items"]) == 2
        assert {row["metric"] for row in state["items"]} == {"calls"}
        assert {"tenantId": "other", "valueBefore": "4", "valueAfter": "1", "difference": "-3"}.items() <= next(
            row.items() for row in state["items"] if row["tenantId"] == "other"
        )
        assert (await asked("GET", params={"limit": 1}))[1]["items"] == state["items"][:1]
        lines = csv.DictReader(io.StringIO((await api.get("/v1/meters/diff", headers=as_csv)).text))
        assert [{name: value or None for name, value in line.items()} for line in lines] == state["items"]
    assert leftovers(folded) == []


def comparing(spark: Spark, database: Database, toml: Any, stop: threading.Event | None = None) -> Any:
    return compared(
        spark, database, parse_definitions(toml), range_events_max=1000, stop=stop or threading.Event(),
        progress=lambda done, end: None,
    )  # fmt: skip
