"""A demo that runs, as a newcomer starts it, and a browser to look at it with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize

from tidelock.postgres.ports import free_port

DESKTOP: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
#: what everything may take on a busy machine
PATIENCE_MS = 60_000


def until(found: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return result


class Demo:
    """Its API."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=30)

    def get(self, path: str, **given: str | int) -> Any:
        return self._client.get(path, params=given).raise_for_status().json()

    def send(self, events: list[dict[str, Any]]) -> None:
        self._client.post("/v1/events", json=events).raise_for_status()

    def close(self) -> None:
        self._client.close()

    def items(self, path: str, **given: str | int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(path, **given)["items"]
        return found


@contextmanager
def running_demo(jars: Path, place: Path) -> Iterator[Demo]:
    """`tidelock demo`, from the moment its numbers move; ended by Ctrl-C, as it says it can be."""
    place.chmod(0o755)
    data, said = place / "demo", place / "said"
    shutil.copytree(jars / "jars", data / "jars")
    port = free_port()
    # It sends a quarter of what it could: the fold and the browser share a small machine.
    flags = ["--data", str(data), "--port", str(port), "--turn", "1s"]
    command = [sys.executable, "-m", "tidelock", "demo", "--fresh", *flags]
    environ = {name: value for name, value in os.environ.items() if not name.endswith("DATABASE_URL")}
    with said.open("w") as output:
        process = subprocess.Popen(command, stderr=output, env=environ)
        try:
            until(lambda: "Numbers move" in said.read_text() or process.poll() is not None, "numbers move")
            assert process.poll() is None, said.read_text()
            with closing(Demo(f"http://127.0.0.1:{port}")) as demo:
                yield demo
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
    assert code == 0, said.read_text()
    assert "Stopped." in said.read_text()


def _closed(demo: Demo) -> list[tuple[str, str]]:
    """Meters and starts of closed periods."""
    meters = demo.items("/v1/periods", tenantId="acme")
    return [(meter["metric"], each["periodStart"]) for meter in meters for each in meter["closed"]]


def pages(demo: Demo) -> dict[str, str]:
    """The address of every page, by its name."""
    sequence = demo.items("/admin/events", stream="trades", limit=1)[0]["ingressSequence"]
    letter = demo.items("/v1/triggers/order_filled/deliveries", status="dead")[0]["eventId"]
    metric, start = until(lambda: _closed(demo), "a period is closed")[0]
    closed = {"metric": metric, "period": start, "tenantId": "acme"}
    return {
        "overview": "/",
        "events": "/events",
        "event": f"/events/{sequence}",
        "errors": "/events/errors",
        "counters": "/counters",
        "customer": "/counters/customer?" + urlencode({"customerRef": "cus_1", "tenantId": "default"}),
        "explain": "/counters/explain?" + urlencode({"metric": "api_calls", "customerRef": "cus_1"}),
        "periods": "/counters/periods?" + urlencode({"tenantId": "acme"}),
        "period": "/counters/period?" + urlencode(closed),
        "windows": "/windows",
        "tables": "/tables?" + urlencode({"table": "trades", "where": '{"quantity": {"_gte": 100}}'}),
        "subscriptions": "/subscriptions?" + urlencode({"table": "orders", "where": '{"quantity": {"_gte": 300}}'}),
        "triggers": "/triggers",
        "trigger": "/triggers/order_filled",
        "delivery": f"/triggers/order_filled/{letter}",
        "new-trigger": "/triggers/+new",
        "meters": "/meters",
        "definitions": "/streams",
        "verify": "/verify",
    }


class Watched:
    """A page of the console, with what went wrong in it, and what it asked of other machines."""

    def __init__(self, browser: Browser, demo: Demo) -> None:
        self._context = browser.new_context(viewport=DESKTOP, color_scheme="light", base_url=demo.url)
        self._context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self._context.new_page()
        self.errors: list[str] = []
        self.abroad: list[str] = []
        self._home = (demo.url, demo.url.replace("http:", "ws:"), "data:", "blob:")
        self._context.on("request", self._asked)
        self._context.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(f"{self.page.url}: {error}"))

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self._home):
            self.abroad.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{self.page.url}: {message.text}")

    def open(self, path: str) -> Page:
        """The page when it is drawn, and its first rows and charts have come."""
        self.page.goto(path)
        self.page.wait_for_selector(".tl-page")
        self.page.wait_for_load_state("networkidle")
        return self.page

    def settle(self) -> None:
        """Until what was changed of its looks is drawn."""
        self.page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    def close(self) -> None:
        self._context.close()
