"""The console in a browser, over one server: a ledger, rows that were folded by hand, and at last API keys."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.conftest import Databases
from tests.fold import folded
from tests.model.samples import at
from tests.serving import Threaded
from tests.views.folding import TICK, Folding, put
from tidelock.console.site import ENTRIES
from tidelock.definitions import parse_definitions
from tidelock.fold.store import Store
from tidelock.ledger.apikeys import create_key
from tidelock.postgres.database import Database
from tidelock.settings.groups import SparkSettings
from tidelock.tables import SCHEMA, tables_of

DEFINITIONS = parse_definitions(
    {
        "streams": {"orders": {"key": "id", "columns": {"id": "string", "state": "string"}}},
        "meters": {
            "api_calls": {"period": "day"},
            "regions": {"stream": "api_calls", "period": "day", "group_by": ["data.region"]},
        },
        "windows": {"volume": {"stream": "orders", "window": {"tumbling": "1m"}, "select": {"n": "count(*)"}}},
    }
)
RUN = "run/42 & more"
PATIENCE_MS = 30_000


@dataclass
class Console:
    """A server with a console."""

    url: str
    database: Database
    api: httpx.Client
    #: sequences of the run, in order: an order, a payment of it, and what was shipped then
    run: list[int] = field(default_factory=list)

    def send(self, *events: dict[str, Any]) -> list[int]:
        answer = self.api.post("/v1/events", json={"events": list(events)}).json()
        assert answer["accepted"] == len(events), answer
        return [result["ingressSequence"] for result in answer["results"]]


class FoldingBehind(Folding):
    """A fold by hand of a ledger that is there already: its commits are not made up."""

    def _record(self) -> int:
        self.sequence, self.time = self.sequence + 1, self.time + TICK
        return self.time


@pytest.fixture(scope="module")
def console(databases: Databases, threaded: Threaded, jars: Path) -> Iterator[Console]:
    spark = SparkSettings(master="local[2]", driver_memory=1 << 30, jars=jars / "jars")
    with (
        databases() as database,
        threaded(database_url=database.url, definitions=DEFINITIONS, key_cache_s=0, spark=spark) as url,
        httpx.Client(base_url=url) as api,
        closing(Store(database, SCHEMA, "fold")) as store,
    ):
        console = Console(url, database, api)
        console.send(*({"stream": "api_calls", "customerRef": f"cus_{n % 3}", "quantity": n} for n in range(120)))
        first = f"order-{uuid.uuid4()}"
        console.run = console.send(
            {"stream": "orders", "data": {"id": "o1", "state": "<b>open</b>"}, "causalityKey": RUN,
             "idempotencyKey": first},
            {"stream": "payments", "causalityKey": RUN, "causationId": first, "idempotencyKey": "paid"},
            {"stream": "shipments", "causalityKey": RUN, "causationId": "paid"},
        )  # fmt: skip
        FoldingBehind(store, DEFINITIONS).fold(
            [put("o1", "default", table=tables_of(DEFINITIONS)["orders"], id="o1", state="<b>open</b>")]
        )
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, _fold_by_hand(database)).result()
        yield console


async def _fold_by_hand(database: Database) -> None:
    """Counters of three days of two customers, late events, errors, and a window that is open."""
    async with await database.connect() as connection:
        for day in (1, 2, 3):
            start = f"2026-03-0{day}T00:00:00Z"
            await folded.counter(
                connection, "default", "api_calls", "big", start, value="1234567.5", total=f"{1234567 + day}.5"
            )
            await folded.counter(connection, "default", "api_calls", "small", start, value=str(day))
        for sequence in (3, 1, 2):
            await folded.adjustment(connection, "default", "api_calls", "big", sequence)
            await folded.error_row(connection, "default", "api_calls", sequence, "missing_quantity")
        await folded.error_row(connection, "default", "orders", 4, "invalid_column")
        state = {"$group": "[]", "window_start": 0, "window_end": 60 * 10**9, "count_0": 54321}
        await folded.put(connection, tables_of(DEFINITIONS)["volume$open"], "default", "[0]", state)


@pytest.fixture
def page(console: Console, browser: Browser) -> Iterator[Page]:
    """A page that must not complain, nor ask any other machine. The browser is opened last: its loop is in the way."""
    context = browser.new_context(base_url=console.url, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    complaints: list[str] = []
    home = (console.url, console.url.replace("http:", "ws:"), "data:", "blob:")
    context.on("request", lambda asked: None if asked.url.startswith(home) else complaints.append(asked.url))
    context.on("console", lambda said: complaints.append(said.text) if _complains(said) else None)
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert not complaints


def _complains(said: ConsoleMessage) -> bool:
    """Of a key that was refused the browser tells too; it should be."""
    return said.type in ("error", "warning") and "/login" not in said.location["url"]


def opened(page: Page, path: str) -> Page:
    page.goto(path)
    page.locator(".tl-page").wait_for()
    return page


def test_every_page_opens_and_is_marked_in_the_menu(page: Page) -> None:
    for entry in ENTRIES:
        opened(page, entry.path)
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator(".tl-side [aria-current=page]")).to_have_text(entry.title)
        expect(page.get_by_text("This page failed")).to_have_count(0)


def test_the_overview_moves_with_the_ledger(page: Page, console: Console) -> None:
    opened(page, "/")
    (sequence,) = console.send({"stream": "api_calls", "customerRef": "new", "quantity": 1})
    expect(page.locator(".tl-stat", has_text="Ledger").locator(".tl-stat-figure")).to_have_text(f"{sequence:,}")
    expect(page.locator(".tl-table tbody tr").first).to_contain_text("fold")
    expect(page.locator(".tl-share", has_text="accepted").locator(".tl-share-figure")).not_to_have_text("0")


def test_events_come_live_until_they_are_paused(page: Page, console: Console) -> None:
    opened(page, "/events")
    rows = page.locator(".tl-table tbody tr")
    (live,) = console.send({"stream": "api_calls", "customerRef": "live"})
    expect(rows.first).to_contain_text(f"{live:,}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".tl-live")).to_have_text("paused")
    # Another page that is live hears of two events, one after the other: in between every page looks once.
    other = opened(page.context.new_page(), "/events")
    for name in ("other", "later"):
        (later,) = console.send({"stream": "api_calls", "customerRef": name})
        expect(other.locator(".tl-table tbody tr").first).to_contain_text(f"{later:,}")
    other.close()
    expect(rows.first).to_contain_text(f"{live:,}")
    page.get_by_role("button", name="Go live").click()
    expect(rows.first).to_contain_text(f"{later:,}")


def test_events_are_paged_in_both_directions(page: Page) -> None:
    opened(page, "/events?stream=api_calls")
    rows = page.locator(".tl-table tbody tr")
    expect(rows).to_have_count(50)
    newest = rows.first.inner_text()
    page.get_by_role("button", name="Older").click()
    expect(page.locator(".tl-live")).to_have_text("paused")
    expect(rows.first).not_to_have_text(re.compile(re.escape(newest.split()[0])))
    page.get_by_role("button", name="Older").click()
    expect(rows.last).to_contain_text("cus_0")
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    page.get_by_role("button", name="Newer").click()
    page.get_by_role("button", name="Newer").click()
    expect(rows).to_have_count(50)


def test_an_event_is_found_by_filter_and_its_causes_are_followed(page: Page, console: Console) -> None:
    ordered, paid, shipped = console.run
    opened(page, "/events")
    page.get_by_label("Causality key").fill(RUN)
    rows = page.locator(".tl-table tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_label("Stream").fill("shipments")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("stream=shipments"))
    rows.first.click()
    page.wait_for_url(f"**/events/{shipped}")
    expect(page.locator(".tl-node")).to_have_count(3)
    expect(page.locator(".tl-edge")).to_have_count(2)
    expect(page.locator(".tl-node-here")).to_have_attribute("data-sequence", str(shipped))
    page.locator(f'.tl-node[data-sequence="{paid}"] .tl-node-room').click()
    page.wait_for_url(f"**/events/{paid}")
    page.locator(f'.tl-node[data-sequence="{ordered}"] .tl-node-room').click()
    page.wait_for_url(f"**/events/{ordered}")
    expect(page.locator(".tl-code pre")).to_contain_text('"state": "<b>open</b>"')
    derived = page.locator(".tl-derived", has_text="latest row of its key")
    expect(derived.locator("tbody tr")).to_contain_text("<b>open</b>")


def test_an_event_that_is_not_there_says_so(page: Page) -> None:
    for name in ("999999999", "0", "nonsense", "9" * 40):
        opened(page, f"/events/{name}")
        expect(page.locator(".tl-empty-title")).to_have_text(f"There is no event {name}")


def _first_cells(page: Page) -> list[str]:
    return page.locator(".tl-table tbody tr td:first-child").all_inner_texts()


def test_errors_come_newest_first_with_their_time_by_source_and_code(page: Page) -> None:
    opened(page, "/events/errors")
    rows = page.locator(".tl-table tbody tr")
    expect(rows).to_have_count(4)
    assert _first_cells(page) == ["4", "3", "2", "1"]
    expect(rows.first.locator(".tl-td-time")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    page.get_by_role("columnheader", name="Event").click()
    expect(rows.first).to_contain_text("missing_quantity")
    assert _first_cells(page) == ["1", "2", "3", "4"]
    _choose(page, "Source", "orders")
    expect(rows).to_have_count(1)
    _choose(page, "Source", "every source")
    _choose(page, "Code", "missing_quantity")
    expect(rows).to_have_count(3)


def test_counters_begin_with_the_newest_period_are_sorted_and_lead_to_their_customer(page: Page) -> None:
    opened(page, "/counters")
    rows = page.locator(".tl-table tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.first).to_contain_text("3 Mar 2026")
    page.get_by_role("columnheader", name="Total").click()
    expect(rows.first).to_contain_text("small")
    page.get_by_role("columnheader", name="Total").click()
    expect(rows.first).to_contain_text("1,234,570.5")
    expect(rows.first).to_contain_text("+3")
    rows.first.get_by_role("link", name="big").click()
    page.wait_for_url("**/counters/customer?customerRef=big&tenantId=default")
    expect(page.locator(".tl-stat", has_text="api_calls").locator(".tl-stat-figure")).to_have_text("1,234,570.5")
    expect(page.get_by_role("img", name="api_calls by day")).to_be_visible()
    expect(page.locator(".tl-table tbody tr")).to_have_count(3)
    assert _first_cells(page) == ["3", "2", "1"]
    page.locator(".tl-table tbody tr").first.click()
    page.wait_for_url("**/events/3")
    opened(page, "/counters/customer?customerRef=nobody")
    expect(page.locator(".tl-empty-title")).to_have_text("Nothing is counted for nobody")


def test_any_table_is_browsed_by_filter_and_in_any_order(page: Page) -> None:
    opened(page, "/tables?table=error_rows")
    rows = page.locator(".tl-table tbody tr")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="Add a condition").click()
    _choose(page, "Column", "code")
    page.get_by_label("Value").fill("missing_quantity")
    expect(rows).to_have_count(3)
    expect(page).to_have_url(re.compile("where="))
    page.get_by_role("columnheader", name="ingress_sequence").click()
    expect(rows.first).to_contain_text("1")
    rows.first.click()
    page.wait_for_url("**/events/1")
    opened(page, "/tables?table=nothing")
    expect(page.locator(".tl-empty-title")).to_have_text("There is no such table")


def test_events_are_narrowed_to_a_stream_that_is_picked_and_a_time(page: Page) -> None:
    opened(page, "/events")
    rows = page.locator(".tl-table tbody tr")
    page.get_by_label("Stream").click()
    page.locator(".q-menu .q-item", has_text="orders").click()
    expect(rows).to_have_count(1)
    page.get_by_label("and before (UTC)").fill("2026-01-01T00:00")
    expect(page.get_by_text("No event matches.")).to_be_visible()
    expect(page).to_have_url(re.compile("to=2026-01-01"))


def test_windows_that_are_open_are_marked_and_small_things_are_as_they_should_be(page: Page) -> None:
    opened(page, "/windows?window=volume")
    row = page.locator(".tl-panel", has_text="Not closed yet").locator("tbody tr")
    expect(row.locator(".tl-chip")).to_have_text("open")
    expect(row).to_contain_text("54,321")
    opened(page, "/triggers/+new")
    expect(page.get_by_text("Leave it empty to generate one; it is shown once.")).to_be_visible()
    page.emulate_media(color_scheme="dark")
    page.goto("/docs")
    expect(page.locator("html")).to_have_class("dark-mode")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).not_to_have_class("dark-mode")


def _choose(page: Page, field: str, option: str) -> None:
    page.get_by_label(field, exact=True).first.click()
    page.locator(".q-menu .q-item").filter(has_text=option).first.click()
    page.locator(".q-menu").first.wait_for(state="hidden")


def test_a_chosen_theme_is_kept(page: Page) -> None:
    opened(page, "/streams")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.locator("[data-tl-theme]").click()
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    opened(page, "/verify")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    page.emulate_media(color_scheme="dark")
    page.locator("[data-tl-theme]").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_numbers_are_shown_as_they_were_recorded_and_a_page_comes_before_its_slow_parts(
    page: Page, console: Console
) -> None:
    body = b'{"stream": "api_calls", "customerRef": "exact", "data": {"amount": 1234567890123456.789, "p": 1.10}}'
    sent = console.api.post("/v1/events", content=body, headers={"content-type": "application/json"}).json()
    opened(page, f"/events/{sent['results'][0]['ingressSequence']}")
    expect(page.locator(".tl-code", has_text="1234567890123456.789")).to_contain_text('"p": 1.10')
    opened(page, "/counters/explain?metric=regions&customerRef=cus_0")
    expect(page.get_by_role("heading", name="By group")).to_be_visible()


def test_a_closed_period_is_marked_and_has_a_page_to_export(page: Page, console: Console) -> None:
    start, end, key = at("2026-03-01"), at("2026-03-02"), '["api_calls","closed","2026-03-01T00:00:00Z"]'
    with console.database.connect_sync() as connection:
        of = (key, start)
        connection.execute(
            "INSERT INTO tidelock_tables.counters VALUES ('default', %s, 'api_calls', 'closed', %s, 12, 2, 7, 5, 7, "
            "NULL, 12, 13, 1, NULL, 1, 1, 1, 1)",
            of,
        )
        connection.execute(
            "INSERT INTO tidelock_tables.statements VALUES ('default', %s, 'api_calls', 'closed', %s, %s, 12, 12, 2, "
            "9, 'h', 1)",
            (*of, end),
        )
        connection.execute(
            """INSERT INTO tidelock_tables."meters$closed" VALUES ('*', '["api_calls","9"]', 'api_calls', 9, %s, 1)""",
            (end,))  # fmt: skip
    opened(page, "/counters?metric=api_calls&customerRef=closed")
    expect(page.get_by_text("closed", exact=True)).to_have_count(2)
    page.get_by_role("link", name="1 Mar 2026").click()
    expect(page.get_by_role("heading", name="api_calls, 1 Mar 2026")).to_be_visible()
    told = page.locator(".tl-chip", has_text="closed").bounding_box()
    assert told is not None
    assert told["width"] < 100, "as wide as its word"
    expect(page.locator(".tl-table tbody tr")).to_have_count(1)
    expect(page.locator(".tl-table tbody tr")).to_contain_text("+1")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    text = download.value.path().read_text()
    assert text.splitlines()[0].startswith("customer_ref,period_start,period_end,value,total,")
    assert "closed,2026-03-01T00:00:00Z,2026-03-02T00:00:00Z,12,12,2,9,1,0" in text
    page.get_by_role("link", name="All periods").click()
    expect(page.get_by_role("heading", name="Open periods")).to_be_visible()
    expect(page.get_by_role("heading", name="Closed periods")).to_be_visible()
    expect(page.get_by_role("link", name="1 Mar 2026")).to_have_attribute("href", re.compile("period=2026-03-01"))
    page.get_by_label("Tenant").fill("another")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("of tenant another")).to_be_visible()
    expect(page.get_by_text("Nothing is open.")).to_be_visible()


def _batched(console: Console, batch: str) -> list[int]:
    """Three events of a batch, one of them amended by another batch, and one without a key; a counter of them."""
    at, customer = "2026-04-01T10:00:00Z", batch
    of = {"stream": "api_calls", "customerRef": customer, "batchId": batch}
    made = console.send(
        *({**of, "ts": at, "quantity": n, "idempotencyKey": f"{batch} {n}"} for n in (1, 2, 4)),
        {**of, "quantity": 8},
        {"stream": "api_calls", "op": "amend", "target": f"{batch} 4", "quantity": 3, "reason": "was too much"},
    )

    async def folded_through() -> None:
        async with await console.database.connect() as connection:
            await folded.counter(connection, "default", "api_calls", customer, "2026-04-01T00:00:00Z", value="6")
            await connection.execute("UPDATE cursors SET sequence = %s WHERE name = 'fold'", [made[-1]])

    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, folded_through()).result()
    return made


def test_a_batch_is_found_previewed_and_reverted(page: Page, console: Console) -> None:
    first, *_, nameless, _ = _batched(console, "wrong file & more")
    opened(page, "/events")
    page.get_by_label("Batch").fill("wrong file & more")
    expect(page.locator(".tl-table tbody tr")).to_have_count(4)
    page.get_by_role("link", name="Batches").click()
    page.wait_for_url("**/events/batches")
    page.locator(".tl-table tbody tr", has_text="wrong file & more").click()
    expect(page.locator(".tl-code pre")).to_have_text("tidelock revert 'wrong file & more' --tenant default --preview")
    expect(page.locator(".tl-stat", has_text="Would be voided")).to_contain_text("2")
    expect(page.locator(".tl-stat", has_text="Would stay")).to_contain_text("2")
    counter = page.locator(".tl-table tbody tr", has_text="api_calls")
    expect(counter.locator(".tl-td-number").nth(0)).to_have_text("6")
    expect(counter.locator(".tl-td-number").nth(1)).to_have_text("3")
    expect(page.locator(".tl-table tbody tr", has_text="no key")).to_contain_text(f"{nameless:,}")
    page.get_by_role("button", name="Revert this batch").click()
    page.get_by_role("button", name="Revert", exact=True).click()
    expect(page.get_by_text("the fold is at sequence")).to_be_visible()
    opened(page, f"/events/{first}")
    correction = page.locator("section", has_text="It was corrected by")
    expect(correction).to_contain_text("revert of batch wrong file & more")
    correction.get_by_role("link").click()
    expect(page.locator("section", has_text="This event corrects")).to_contain_text(f"sequence {first:,}")


def test_headings_that_sort_are_on_one_line(page: Page) -> None:
    opened(page, "/tables?table=counters")
    expect(page.locator(".tl-table thead th").first).to_be_visible()
    page.locator(".tl-table thead th", has_text="customer_ref").click()
    tops = page.evaluate("""() => [...document.querySelectorAll('.tl-table thead th')].map(heading => {
        const text = [...heading.childNodes].find(node => node.nodeType === 3 && node.textContent.trim())
        const range = document.createRange()
        range.selectNode(text)
        return Math.round(range.getBoundingClientRect().top)
    })""")
    assert len(tops) > 10
    assert len(set(tops)) == 1, tops


def test_other_meters_are_tried_on_an_event_and_compared(page: Page, console: Console) -> None:
    with console.database.connect_sync() as connection:
        # A real fold stands at the end of a commit.
        connection.execute(
            "UPDATE cursors SET sequence = (SELECT ingress_sequence FROM ledger_head) WHERE name = 'fold'"
        )
    opened(page, "/meters")
    definitions = page.get_by_label("Definitions", exact=True)
    definitions.fill('[meters.api_calls]\naggregation = "median"')
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text('"median" is not allowed')).to_be_visible()
    definitions.fill('[meters.api_calls]\nperiod = "month"\n[meters.api_calls.where]\nquantity = { _gt = 2 }')
    tried = page.locator(".tl-panel", has_text="One event")
    tried.get_by_role("button", name="Try").click()
    expect(tried).to_contain_text("It would be accepted")
    expect(tried.locator("tbody tr")).to_contain_text(["the meter's filter leaves it out"])
    page.get_by_label("Event", exact=True).fill("{")
    tried.get_by_role("button", name="Try").click()
    expect(tried).to_contain_text("the event is not JSON")

    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    compared = page.locator(".tl-panel", has_text="All events")
    expect(compared.locator(".tl-verify-title")).to_have_text(re.compile("counters would differ"), timeout=60_000)
    expect(compared.locator("tbody tr").first).to_contain_text(re.compile("big.*-1,234,567.5"))
    with page.expect_download() as download:
        compared.get_by_role("button", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].startswith("tenantId,metric,customerRef,")
    assert [line.split(",")[2] for line in lines[1:4]] == ["big"] * 3


def test_on_a_phone_the_menu_is_at_the_bottom(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    opened(page, "/")
    expect(page.locator(".tl-side")).to_be_hidden()
    page.locator(".tl-more summary").click()
    page.locator(".tl-sheet").get_by_text("Verify").click()
    page.wait_for_url("**/verify")
    for entry in ENTRIES:
        opened(page, entry.path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{entry.path} is too wide"


def test_the_ledger_is_checked_and_a_difference_named(page: Page, console: Console) -> None:
    opened(page, "/verify")
    page.get_by_role("button", name="Check now").click()
    title = page.locator(".tl-verify-title")
    expect(title).to_have_text("The ledger is what was recorded", timeout=60_000)
    expect(page.locator(".tl-check .tl-good")).to_have_count(7)
    with console.database.connect_sync() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE events SET customer_ref = 'forged' WHERE ingress_sequence = 5")
    page.get_by_role("button", name="Check now").click()
    expect(title).to_have_text("The ledger differs from what was recorded", timeout=60_000)
    expect(page.locator(".tl-finding", has_text="First difference")).to_contain_text("sequence 5")
    expect(page.locator(".tl-mend").first).to_be_visible()


def test_with_keys_one_is_asked_for_and_its_tenant_followed(
    page: Page, console: Console, make_key: Callable[..., str]
) -> None:
    """The last of all: from the first key on, everybody needs one."""
    key = make_key("acme", ["read", "ingest"])
    console.api.post(
        "/v1/events", json={"stream": "s", "customerRef": "ours"}, headers={"authorization": f"Bearer {key}"}
    )
    page.goto("/events?stream=s")
    page.wait_for_url("**/login?next=**")
    page.get_by_label("API key").fill("tdl_wrong")
    page.get_by_role("button", name="Open the console").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Open the console").click()
    page.wait_for_url("**/events?stream=s")
    expect(page.locator(".tl-tenant")).to_have_text("acme")
    expect(page.locator(".tl-table tbody tr")).to_have_count(1)
    opened(page, f"/events/{console.run[0]}")
    expect(page.locator(".tl-empty-title")).to_contain_text("There is no event")
    opened(page, "/verify")
    expect(page.locator(".tl-empty-title")).to_have_text("This needs another key")
    opened(page, "/meters")
    expect(page.locator(".tl-empty-title")).to_have_text("This needs another key")
    expect(page.get_by_label("Definitions", exact=True)).to_have_count(0)
    page.get_by_label("Sign out").click()
    page.wait_for_url("**/login")
    page.goto("/")
    page.wait_for_url("**/login")


@pytest.fixture
def make_key(console: Console) -> Callable[..., str]:
    async def make(tenant: str, scopes: list[str]) -> str:
        async with await console.database.connect() as connection:
            return (await create_key(connection, tenant, scopes))[1]

    def made(tenant: str, scopes: list[str]) -> str:
        with ThreadPoolExecutor(1) as elsewhere:
            return elsewhere.submit(asyncio.run, make(tenant, scopes)).result()

    return made
