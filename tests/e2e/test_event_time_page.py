"""The page on event time: what its commands answer is what stands below them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_events import listed
from tests.budgets import HANG_S
from tests.e2e.clocked import Clocked, clocked
from tests.e2e.test_docs import FENCE
from tests.faults.servers import ROOT
from tests.serving import Start
from tidelock.definitions import parse_definitions
from tidelock.eventtimes import EventtimeTypeRegistry, eventtime_types, load_plugins
from tidelock.instants import SECOND, parse_rfc3339
from tidelock.spark.runtime import Spark

PAGE, TYPES = ((ROOT / "docs" / name).read_text() for name in ("event-time.md", "event-time-types.md"))
EIGHT = parse_rfc3339("2026-02-02T08:00:00Z")
#: a row of the table that follows the watermark: number of the request, what it is judged by, what it leaves
TOLD = re.compile(r"^\| (\d+) \|[^|]*\| ([\w:]+)[^|]*\| (\S+) \|", re.MULTILINE)


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in FENCE.findall(page) if kind in kinds]


class Story:
    """The commands of the page, one after another, three seconds apart, and what the last one answered."""

    def __init__(self, place: Clocked) -> None:
        self._place = place
        self.answer: Any = None
        #: what was judged by, and is then, the watermark of each request
        self.watermarks: list[tuple[str | None, str]] = []
        self._now = EIGHT + 3 * SECOND

    async def run(self, command: str) -> None:
        words = shlex.split(command)
        if words[0] != "curl":
            await self._tidelock(*words[1:])
        elif "-d" in words:
            before = await self._watermark() if self.watermarks else None
            await self._place.send(self._later(), json.loads(words[words.index("-d") + 1]))
            self.watermarks.append((before, await self._watermark()))
        else:
            where = words[words.index("--data-urlencode") + 1].split("=", 1) if "-G" in words else None
            (url,) = (word for word in words if word.startswith("http://"))
            path = url.removeprefix("http://127.0.0.1:8080")
            self.answer = await self._get(path, {where[0]: where[1]} if where else None)

    async def _tidelock(self, name: str, *arguments: str) -> None:
        if name == "drain":
            await self._place.drain(self._later(), *arguments)
        else:
            await self._place.folded()
            self.answer = await self._place.printed(name, *arguments)

    async def _get(self, path: str, params: dict[str, str] | None = None) -> Any:
        await self._place.folded()
        deadline = time.monotonic() + HANG_S
        while True:
            body = (await self._place.client.get(path, params=params)).json()
            found = body["items"] if "items" in body else body["windows"]
            if found or time.monotonic() > deadline:
                return found
            # Only a window by arrival makes one wait: until its minute is over, when the server ticks.
            self._now = self._place.now = EIGHT + 61 * SECOND
            await asyncio.sleep(0.01)

    async def _watermark(self) -> str:
        (health,) = await self._get("/admin/event-health?window=fares_10s")
        return str(health["watermark"])

    def _later(self) -> int:
        self._now += 3 * SECOND
        return self._now


@pytest.fixture(scope="module")
def _plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The module that the page on types shows, where its settings say. Other tests have types of the same names."""
    shop: Path = tmp_path_factory.mktemp("plugins") / "shop"
    shop.mkdir()
    ((_, module),) = blocks(TYPES, "python")
    (shop / "eventtime.py").write_text(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(shop.parent)
        patch.setattr(eventtime_types, "_parsers", dict(EventtimeTypeRegistry()._parsers))
        modules: list[str] = types_toml()["plugins"]
        load_plugins(modules)
        yield
        for name in (*modules, shop.name):
            sys.modules.pop(name, None)


def types_toml() -> dict[str, Any]:
    ((_, text),) = blocks(TYPES, "text")
    return tomllib.loads(text)


@pytest.fixture(scope="module")
async def place(_plugin: None, start: Start, spark: Spark) -> AsyncIterator[Clocked]:
    ((_, text),) = blocks(PAGE, "toml")
    declared = tomllib.loads(text)
    invoices = {name: stream | {"ordered": True} for name, stream in types_toml()["streams"].items()}
    definitions = parse_definitions({**declared, "streams": declared["streams"] | invoices}, eventtime_types=None)
    async with clocked(start, spark, definitions) as opened:
        yield opened


async def test_what_the_page_shows_is_what_the_commands_answer(place: Clocked) -> None:
    story = Story(place)
    compared = 0
    for kind, text in blocks(PAGE, "sh", "json", "text"):
        if kind == "sh":
            for command in re.split(r"\n(?=curl|\.venv)", text):
                await story.run(command.replace("\\\n", ""))
        elif kind == "json":
            assert story.answer == json.loads(text), text
            compared += 1
        else:
            lines = [line.rstrip() for line in story.answer.splitlines()]
            assert lines[: text.count("\n")] == text.splitlines()
            compared += 1
    assert compared >= 10
    told = [("2026-02-02T" + before + "Z", f"2026-02-02T{after}Z") for _, before, after in TOLD.findall(PAGE)]
    assert len(told) == 5
    assert [after for _, after in told] == [after for _, after in story.watermarks[:5]]
    assert [before for before, _ in told[1:]] == [before for before, _ in story.watermarks[1:5]]


async def test_a_type_of_ones_own_tells_time(place: Clocked) -> None:
    days = [{"stream": "invoices", "data": {"day": day}} for day in (20486, "20485", "today")]
    await place.send(place.now + SECOND, days)
    await place.folded()
    rows = await listed(place.client, "/v1/tables/invoices_ordered")
    assert sorted((row["position"], row["event_time"]) for row in rows) == [
        (1, "2026-02-01T00:00:00Z"), (2, "2026-02-02T00:00:00Z")
    ]  # fmt: skip
    (error,) = await listed(place.client, "/v1/errors", source="invoices")
    assert error["code"] == "invalid_event_time"
