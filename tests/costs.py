"""Where the time of a run goes: processor time and waiting, by file and by fixture.

    python -m pytest -p tests.costs -m "not soak" -n 3

The processor time of a test is that of the tests' process and of all that it started, servers, JVMs and Postgres
included, while they run and after they ended: what one test started and another ends is counted for both in part.
`COSTS=path` keeps every figure as it comes, as a line of JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_TICKS_S = os.sysconf("SC_CLK_TCK")
#: rows of each table
_ROWS = 60
#: "test" or "fixture", its name, seconds, seconds of processors
_noted: list[tuple[str, str, float, float]] = []
#: what measurements within each that is running took, which it leaves out
_inside: list[list[float]] = []


def processor_s(process: int | None = None) -> float:
    """Of a process and its descendants, those included that have ended."""
    path = Path(f"/proc/{process or os.getpid()}")
    with suppress(OSError, IndexError):
        fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
        used = sum(map(int, fields[11:15])) / _TICKS_S
        for task in (path / "task").iterdir():
            for child in (task / "children").read_text().split():
                used += processor_s(int(child))
        return used
    return 0.0


@contextmanager
def _measured(kind: str, name: str) -> Iterator[None]:
    _inside.append([0.0, 0.0])
    began_s, used_s = time.monotonic(), processor_s()
    try:
        yield
    finally:
        took, used = time.monotonic() - began_s, processor_s() - used_s
        taken, spent = _inside.pop()
        if _inside:
            _inside[-1][0] += took
            _inside[-1][1] += used
        _noted.append((kind, name, took - taken, used - spent))
        if (kept := os.environ.get("COSTS")) is not None:
            with Path(kept).open("a") as file:
                file.write(json.dumps(_noted[-1]) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    with _measured("test", item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    if fixturedef.scope == "function":
        return (yield)
    with _measured("fixture", f"{fixturedef.argname} of {fixturedef.baseid or 'tests'}"):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands over what it noted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["costs"] = json.dumps(_noted)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _noted.extend(map(tuple, json.loads(node.workeroutput.get("costs", "[]"))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for kind in ("test", "fixture"):
        by_file: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for _, name, took_s, used_s in (noted for noted in _noted if noted[0] == kind):
            for total in (by_file["in all"], by_file[name.split("::")[0]]):
                total[0] += took_s
                total[1] += used_s
        terminalreporter.section(f"processor time and time by {kind}")
        for name, (took_s, used_s) in sorted(by_file.items(), key=lambda each: -each[1][1])[:_ROWS]:
            terminalreporter.line(f"{used_s:8.1f} s {took_s:8.1f} s  {name}")
