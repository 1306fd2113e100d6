"""The console while the demo runs: every page as it looks, and the ways through it, in a browser.

Pictures go to a temporary directory; `make pictures` puts those of the README and the docs into docs/images.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from playwright.sync_api import TimeoutError as Timeout

from tests.console.demos import DESKTOP, PATIENCE_MS, PHONE, Demo, Watched, pages, running_demo, until
from tidelock.client import verify_webhook
from tidelock.console.parts.numbers import figure

pytestmark = pytest.mark.timeout(600)
expect.set_options(timeout=PATIENCE_MS)

#: pictures that pages of the docs show, by name
SHOWN = {
    "overview-light", "overview-dark", "event-light", "explain-light", "explain-phone-dark", "windows-dark",
    "subscriptions-light", "delivery-light",
}  # fmt: skip
#: every page is drawn in one of the first two, by turns, and in all when pictures are kept
LOOKS = [
    ("light", DESKTOP, "light"), ("phone-dark", PHONE, "dark"), ("dark", DESKTOP, "dark"),
    ("phone-light", PHONE, "light"),
]  # fmt: skip
BYTES_MAX = 300_000
#: pages whose tables have few enough columns, also in the hand
WHOLE = {"overview", "events", "errors", "counters", "customer", "explain", "triggers", "trigger", "delivery"}
_CUT = "tables => tables.filter(each => each.scrollWidth > each.clientWidth).length"
#: a customer whose months are over, so that nothing moves there any more
PAST = {"metric": "api_calls", "customerRef": "anvil", "tenantId": "acme"}


@pytest.fixture(scope="module")
def demo(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    if (url := os.environ.get("TIDELOCK_DEMO_URL")) is not None:
        # One that runs already, for who works on pages.
        with closing(Demo(url)) as running:
            yield running
        return
    with running_demo(jars, tmp_path_factory.mktemp("demo")) as running:
        # A little of everything: a month that is over, a trade, a window's watermark, and a webhook that was given up.
        until(lambda: running.items("/v1/adjustments", **PAST), "the past is folded")
        until(lambda: running.items("/v1/tables/trades", limit=1), "there are trades")
        until(lambda: running.items("/v1/triggers/order_filled/deliveries", status="dead"), "a letter is dead")
        yield running


@pytest.fixture
def watched(demo: Demo, browser: Browser) -> Iterator[Watched]:
    seen = Watched(browser, demo)
    yield seen
    seen.close()
    assert not seen.errors
    assert not seen.abroad, "nothing leaves this machine"


def test_the_demo_moves_for_several_tenants_and_calls_its_receiver(demo: Demo) -> None:
    assert until(lambda: demo.items("/v1/tables/orders"), "orders are there")
    assert {row["tenant_id"] for row in demo.items("/v1/counters", limit=1000)} > {"default"}
    assert until(lambda: demo.items("/v1/triggers/order_filled/deliveries", status="delivered"), "it is told")


def test_every_page_is_drawn_light_and_dark_on_a_desk_and_in_the_hand(
    watched: Watched, demo: Demo, tmp_path: Path
) -> None:
    kept = os.environ.get("TIDELOCK_PICTURES")
    for number, (name, path) in enumerate(pages(demo).items()):
        page = watched.open(path)
        if name == "subscriptions":
            page.get_by_role("button", name="Start").click()
            page.locator(".tl-messages .tl-chip", has_text="UPDATE").first.wait_for()
        for label, size, scheme in LOOKS if kept else LOOKS[number % 2 : number % 2 + 1]:
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            watched.settle()
            wanted = f"{name}-{label}"
            place = Path(kept) if kept and wanted in SHOWN else tmp_path
            picture = page.screenshot(path=place / f"{wanted}.png", animations="disabled")
            assert 5_000 < len(picture) < BYTES_MAX, f"{wanted} has {len(picture)} bytes"
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], f"{wanted} is too wide"
            assert page.locator(".tl-empty-title", has_text="failed").count() == 0
            if name in WHOLE:
                assert not page.locator(".tl-table .q-table__middle").evaluate_all(_CUT), (
                    f"{wanted} has a table cut off"
                )
        page.set_viewport_size(DESKTOP)


def test_a_counter_is_explained_by_the_same_numbers_as_the_apis(watched: Watched, demo: Demo) -> None:
    page = watched.open("/counters?" + urlencode(PAST))
    # The newest period is the first.
    page.locator(".tl-table tbody tr").last.locator("td").last.click()
    page.wait_for_url("**/counters/explain?**")
    found = demo.get("/v1/explain", **PAST, period=demo.items("/v1/counters", **PAST)[0]["period_start"])
    for name in ("total", "value", "adjustment"):
        expect(_fact(page, name)).to_have_text(figure(found[name]))
    assert found["adjustment"] not in (None, "0"), "two of its events came late"
    for part in ("folded", "adjusted"):
        expect(_fact(page, f"count-{part}")).to_have_text(str(found[part]["count"]))
    expect(_fact(page, "sequences")).to_have_text(f"{found['firstSequence']:,} – {found['lastSequence']:,}")
    expect(page.get_by_text(found["why"])).to_be_visible()
    expect(page.get_by_text("the stored counter agrees")).to_be_visible()
    rows = page.locator("tr.tl-leads", has=page.locator(".tl-td-chip"))
    shown = rows.filter(has_text=figure(found["items"][-1]["ingressSequence"]))
    expect(shown).to_contain_text(figure(found["items"][-1]["total"]))
    shown.click()
    page.wait_for_url(f"**/events/{found['items'][-1]['ingressSequence']}")


def test_a_counter_that_moves_is_explained_as_of_a_sequence_page_by_page(watched: Watched, demo: Demo) -> None:
    asked: dict[str, str | int] = {"metric": "api_calls", "customerRef": "laser", "tenantId": "globex"}
    # The demo would take half a minute to send as many.
    call = {"stream": "api_calls", "customerRef": "laser", "tenantId": "globex", "quantity": 1}
    demo.send([call | {"data": {"region": "eu"}}] * 61)
    until(lambda: demo.get("/v1/explain", **asked, limit=1)["folded"]["count"] > 60, "more than a page of calls")
    asked["asOf"] = demo.get("/v1/explain", **asked, limit=1)["throughSequence"]
    first = demo.get("/v1/explain", **asked, limit=50)
    second = demo.get("/v1/explain", **asked, limit=50, cursor=first["next"])
    page = watched.open("/counters/explain?" + urlencode(asked))
    expect(_fact(page, "total")).to_have_text(figure(first["total"]))
    expect(page.get_by_text(f"as of sequence {asked['asOf']}")).to_be_visible()
    page.get_by_role("button", name="Next").last.click()
    expect(page.get_by_role("link", name=figure(second["items"][0]["ingressSequence"]), exact=True)).to_be_visible()


def test_a_filter_is_built_and_a_message_comes(watched: Watched) -> None:
    page = watched.open("/subscriptions?table=trades")
    page.get_by_role("button", name="Add a condition").click()
    _choose(page, "Column", "quantity")
    _choose(page, "Is", "≥")
    page.get_by_label("Value").fill("100")
    expect(_fact(page, "graphql")).to_contain_text("trades(where: {quantity: {_gte: 100}})")
    page.get_by_role("button", name="JSON").click()
    expect(page.get_by_label("Filter as JSON")).to_have_value('{\n  "quantity": {\n    "_gte": 100\n  }\n}')
    page.get_by_role("button", name="Start").click()
    page.locator(".tl-messages .tl-chip", has_text="INSERT").first.wait_for()
    expect(_fact(page, "counts")).to_contain_text("INSERT")
    page.get_by_role("button", name="Stop").click()
    expect(_fact(page, "listening")).to_have_text("not listening")


def test_a_trigger_is_made_and_its_delivery_seen(watched: Watched, demo: Demo) -> None:
    page = watched.open("/triggers")
    page.get_by_role("button", name="New trigger").click()
    with _receiver() as (url, received):
        page.get_by_label("Name").fill("seen_in_a_browser")
        _choose(page, "Table", "trades")
        page.get_by_role("button", name="Add a condition").first.click()
        _choose(page, "Column", "quantity")
        _choose(page, "Is", "≥")
        page.get_by_label("Value").fill("100")
        page.get_by_label("Webhook").fill(url)
        page.get_by_role("button", name="Create trigger").click()
        secret = _fact(page, "secret").locator("pre").inner_text()
        assert secret.startswith("whsec_")
        page.get_by_role("button", name="See deliveries").click()
        page.wait_for_url("**/triggers/seen_in_a_browser")
        page.locator(".tl-table .tl-chip", has_text="delivered").first.click()
        expect(page.get_by_text('"trigger_name": "seen_in_a_browser"')).to_be_visible()
        body, headers = received[0]
        assert verify_webhook(body, headers, secret)["event_type"] == "MATCH"
        page.go_back()
        page.get_by_role("button", name="Disable").click()
        page.locator(".q-dialog").get_by_role("button", name="Disable").click()
        expect(page.get_by_role("button", name="Enable")).to_be_visible()
        page.get_by_role("button", name="Delete").click()
        page.locator(".q-dialog").get_by_role("button", name="Delete").click()
        page.wait_for_url("**/triggers")
    assert "seen_in_a_browser" not in [each["name"] for each in demo.items("/v1/triggers")]


def test_a_dead_letter_is_delivered_again(watched: Watched, demo: Demo) -> None:
    page = watched.open("/triggers/order_filled")
    page.get_by_role("button", name="Dead webhooks").click()
    page.locator(".tl-table tbody tr", has_text="dead").first.click()
    page.wait_for_url("**/triggers/order_filled/*")
    letter = page.url.rsplit("/", 1)[1]
    page.get_by_role("button", name="Redeliver").click()
    page.locator(".tl-row .tl-chip", has_text="delivered").wait_for()
    assert letter in {each["eventId"] for each in demo.items("/v1/triggers/order_filled/deliveries", limit=1000)}
    expect(page.locator(".tl-table tbody tr").first).to_contain_text("204", timeout=PATIENCE_MS)


def _fact(page: Page, name: str) -> Locator:
    return page.locator(f'[data-is="{name}"]')


def _choose(page: Page, field: str, option: str) -> None:
    """Open the menu again where the server has drawn the row anew meanwhile, and it is gone."""
    chosen = page.get_by_label(field, exact=True).first
    menu = page.locator(".q-menu")
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        with suppress(Timeout):
            chosen.click(timeout=2_000)
            menu.locator(".q-item").filter(has_text=option).first.click(timeout=2_000)
            menu.first.wait_for(state="hidden", timeout=2_000)
            return
        page.keyboard.press("Escape")
    pytest.fail(f"{option} cannot be chosen as {field}")


@contextmanager
def _receiver() -> Iterator[tuple[str, list[tuple[bytes, Mapping[str, str]]]]]:
    """Takes webhooks; gives its URL, and what came."""
    received: list[tuple[bytes, Mapping[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.rfile.read(int(self.headers["content-length"])), dict(self.headers)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", received
        finally:
            server.shutdown()
            thread.join()
