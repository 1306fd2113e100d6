"""The console over a ledger of ten million events: every page opens, and asks for no more than it shows."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import duckdb
import pytest
from playwright.sync_api import Browser, expect

from tests.console.demos import PATIENCE_MS, Demo, Watched, pages, running_demo, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5400)]
EVENTS = int(os.environ.get("SOAK_EVENTS", "10000000"))
#: one customer with a tenth of all calls in one month
WHALE = {"metric": "api_calls", "customerRef": "whale", "tenantId": "acme"}
#: what a page may take, its socket and its first rows included
PAGE_S = 5.0
#: what is there when a page is, where that is not a row of a table
_SHOWN = {
    "/": ".tl-page .tl-chart svg",
    "/counters/explain": '[data-is="total"]',
    "/windows": ".tl-page .tl-chart svg",
    "/subscriptions": '[data-is="graphql"]',
    "/triggers/+new": "input",
    "/verify": "button",
}

# Calls, trades and orders of three months: clocks differ by minutes, one event in a hundred is half a day late.
_FILE = """
COPY (
    SELECT tenants[i % 3 + 1] AS "tenantId",
           CASE WHEN kind < 6 THEN 'api_calls' WHEN kind < 9 THEN 'trades' ELSE 'orders' END AS stream,
           CASE WHEN i % 6 = 0 THEN 'whale' ELSE 'cus_' || h % 20000 END AS "customerRef",
           ts, (h % 100)::varchar AS quantity,
           CASE WHEN kind < 6 THEN json_object('region', regions[i % 4 + 1], 'path', '/v1/batch')
                WHEN kind < 9 THEN json_object('trade_id', 1000000 + h % 500000, 'order_id', 'o' || h % 200000,
                    'symbol', 'S' || i % 500, 'quantity', h % 900, 'price', '12.5', 'ts', ts)
                ELSE json_object('order_id', 'o' || h % 200000, 'symbol', 'S' || i % 500, 'side', 'buy', 'quantity', 5,
                    'price', '12.5', 'status', 'open', 'trader', 't' || i % 50) END AS data,
           'large ' || i AS "idempotencyKey", 'large' AS source
    FROM (
        SELECT i, i % 10 AS kind, hash(i) AS h, ['acme', 'globex', 'initech'] AS tenants,
               ['eu', 'us', 'ap', 'sa'] AS regions,
               epoch_ms(TIMESTAMP '2026-05-01') + i * 7776000000 // {events} + (h % 300000)::bigint
               - CASE WHEN i % 100 = 0 THEN 43200000 ELSE 0 END AS ts
        FROM range({events}) AS counted(i)
    )
) TO '{file}' (FORMAT parquet, ROW_GROUP_SIZE 100000)
"""


@pytest.fixture(scope="module")
def demo(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    place = tmp_path_factory.mktemp("large")
    file = place / "large.parquet"
    duckdb.execute(_FILE.format(events=EVENTS, file=file))
    with running_demo(jars, place) as running:
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "tidelock", "import", str(file), "--data", str(place / "demo"), "--json"], check=True
        )
        print(f"{EVENTS:,} events imported in {time.monotonic() - begun:.0f} s")
        until(lambda: _lag(running) < 10_000, "everything is folded", 3600)
        print(f"and folded after {time.monotonic() - begun:.0f} s")
        yield running


def _lag(demo: Demo) -> int:
    found: dict[str, int] = {
        reader["name"]: reader["lagSequences"] for reader in demo.get("/admin/event-health")["readers"]
    }
    return max(found["fold"], found["triggers"])


def test_every_page_opens_with_all_of_it_behind(demo: Demo, browser: Browser) -> None:
    watched = Watched(browser, demo)
    places = pages(demo) | {
        "events of a customer": "/events?" + urlencode({"customerRef": "whale", "tenantId": "acme"}),
        "an event of long ago": f"/events/{EVENTS // 2}",
        "events that do not fit": "/events/errors",
        "counters of a customer": "/counters?" + urlencode(WHALE),
        "explain the largest": "/counters/explain?" + urlencode(WHALE | {"period": "2026-06-01T00:00:00Z"}),
    }
    taken = {name: _opened(watched, path) for name, path in places.items()}
    for name, seconds in taken.items():
        print(f"  {name}: {seconds:.2f} s")
    watched.close()
    assert not watched.errors
    assert not watched.abroad
    assert {name: seconds for name, seconds in taken.items() if seconds > PAGE_S} == {}


def _opened(watched: Watched, path: str) -> float:
    """The median of three visits, from the address to the first of what the page is there for."""
    shown = watched.page.locator(_SHOWN.get(path.split("?")[0], ".tl-page :is(tbody td:nth-child(2), dd, .tl-chip)"))
    found = []
    for _ in range(3):
        begun = time.monotonic()
        watched.page.goto(path)
        expect(shown.first).to_be_visible(timeout=PATIENCE_MS)
        found.append(time.monotonic() - begun)
        assert watched.page.locator(".tl-empty-title", has_text="failed").count() == 0, path
    return statistics.median(found)
