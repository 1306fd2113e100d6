"""Counters: each group can be opened, pages are of one moment, and what costs much is asked for once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tidelock.console.pages.explain import Events, _group_row
from tidelock.console.parts.rowlist import RowList

ASKED = {"metric": "calls", "customerRef": "c", "period": "2026-11-02"}
FOUND: Any = {"periodStart": "2026-11-01T00:00:00Z", "throughSequence": 70, "items": [], "next": None}


@pytest.mark.parametrize(
    ("group", "asked_by", "name"),
    [("eu", {"group": ["eu"]}, "eu"), ("", {"group": [""]}, "(empty)"), (None, {"groupNull": ["true"]}, "none")],
)
def test_every_group_can_be_opened(group: str | None, asked_by: dict[str, list[str]], name: str) -> None:
    row = _group_row({"group": group, "total": "1", "value": "1", "adjustment": None}, FOUND, ASKED)
    asked = parse_qs(urlsplit(row["_href"]).query, keep_blank_values=True)
    assert {given: asked[given] for given in asked.keys() & {"group", "groupNull"}} == asked_by
    assert row["group"] == name


async def test_later_pages_are_of_the_moment_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking:
        async def exact(self, path: str, **given: Any) -> Any:
            self.given = given
            return FOUND

    visit: Any = type("Visiting", (), {"api": Asking()})()
    events = Events(visit, ASKED, FOUND)
    monkeypatch.setattr(events, "_fill", lambda _: None)
    await events._read()
    assert (visit.api.given["asOf"], visit.api.given["period"]) == (70, FOUND["periodStart"])


async def test_rows_that_are_dear_to_find_are_not_asked_for_again_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.1, 1.0, 3.0])
    monkeypatch.setattr("tidelock.console.parts.rowlist.time", SimpleNamespace(monotonic=lambda: next(clock)))
    reads = []

    async def query(*_: object) -> Any:
        reads.append(1)
        return {"counters": []}

    async def made(_: list[Any]) -> list[Any]:
        return []

    monkeypatch.setattr("tidelock.console.parts.rowlist.query", query)
    visit: Any = SimpleNamespace(api=None)
    rows = RowList(visit, "counters", [], made, sort=("period_start", True))
    rows._shown, rows._pager = SimpleNamespace(rows=[]), SimpleNamespace(set=lambda *_, **__: None)  # type: ignore[assignment]
    for _ in range(4):
        await rows.again()
    assert len(reads) == 2
