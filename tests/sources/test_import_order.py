"""Imports in order of time: one order for a file, whatever memory there is, kept through kills; what a dry run says."""

import json
import os
import random
import re
import signal
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.commandline import events, process, recorded, run
from tests.faults.processes import until
from tidelock.model import Problem, Rejected
from tidelock.postgres.database import Database
from tidelock.sources.files.order import NEVER, InOrder, SortRoom, time_of
from tidelock.sources.files.rows import FileRow

START = datetime(2026, 1, 1, tzinfo=UTC)
_REFUSED = Rejected(Problem("invalid_json", "not JSON"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class _Rows:
    """Rows that are there already."""

    fraction = 1.0
    names_stream = True

    def __init__(self, rows: list[FileRow]) -> None:
        self._rows = rows

    def rows(self, after: int) -> Any:
        return iter(self._rows[after:])

    def close(self) -> None: ...


def _text(seconds: int | None, padding: int) -> bytes | Rejected:
    if seconds is None:
        return _REFUSED
    if seconds < 0:
        return b'{"stream":"s"}'
    return json.dumps({"ts": at(seconds), "data": "x" * padding}).encode()


texts = st.builds(_text, st.none() | st.integers(-1, 20), st.integers(0, 300))


@given(found=st.lists(texts, max_size=200), memory=st.sampled_from([1, 5_000, 2**20]), after=st.integers(0, 50))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_come_by_time_and_where_that_is_equal_as_the_file_has_them_whatever_memory_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[bytes | Rejected], memory: int, after: int
) -> None:
    # Small parts, so that a short list has many runs, and more of them than are merged at a time.
    monkeypatch.setattr("tidelock.sources.files.runs._WAITING_ROWS", 3)
    monkeypatch.setattr("tidelock.sources.files.runs._RUNS_MAX", 4)
    rows = [FileRow(number, text) for number, text in enumerate(found, 1)]
    order = InOrder(lambda: _Rows(rows), SortRoom(memory, tmp_path))
    try:
        assert order.read(lambda *_: None, lambda: False)
        by_time = sorted(rows, key=time_of)
        assert order.sorted_already == (by_time == rows)
        assert list(order.rows(after)) == list(enumerate(by_time, 1))[after:]
    finally:
        order.close()
    assert list(tmp_path.iterdir()) == []


def test_the_time_of_a_row_is_that_of_its_event_and_what_has_none_comes_last() -> None:
    known = [b'{"ts":1}', b'{"occurredAt":"1970-01-01T00:00:00.001Z","data":{"ts":7}}', b'{"ts":null,"occurredAt":1}']
    assert {time_of(FileRow(1, text)) for text in known} == {1_000_000}
    unknown: list[bytes | Rejected] = [
        b"{}",
        b"not json",
        b"[1]",
        b'{"ts":[]}',
        b'{"ts":"soon"}',
        b'{"ts":1.5}',
        b"\xff",
        _REFUSED,
    ]
    assert {time_of(FileRow(1, text)) for text in unknown} == {NEVER}


def test_a_file_is_recorded_in_order_of_time_and_as_it_is_when_that_is_asked_for(
    database: Database, folder: Path
) -> None:
    seconds = [3, 1, None, 2, 1, "soon", 4]
    lines = [f"s,{n},{at(s) if isinstance(s, int) else s or ''}\n" for n, s in enumerate(seconds)]
    (folder / "a.csv").write_text("stream,customerRef,ts\n" + "".join(lines))
    found = run(database, "import", "a.csv", "--json")
    assert json.loads(found.stdout)["problems"][0]["row"] == 6
    assert events(database) == [("1",), ("4",), ("3",), ("0",), ("6",), ("2",)]
    run(database, "import", "a.csv", "--tenant", "t", "--as-is")
    assert events(database)[6:] == [(str(n),) for n in (0, 1, 2, 3, 4, 6)]


def _unsorted(path: Path, count: int, *, seed: int = 7) -> list[int]:
    """A file of events in any order, twenty of one time together; gives their customers in the file's order."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    with path.open("w") as file:
        file.write("stream,customerRef,ts,quantity\n")
        file.writelines(f"s,{n},{at(n // 20)},1\n" for n in order)
    return order


def test_an_import_killed_on_the_way_continues_in_the_same_order_with_other_memory(
    database: Database, folder: Path
) -> None:
    """The short form of what docs/proofs.md has of five million rows."""
    rows = 6_000
    order = _unsorted(folder / "a.csv", rows)
    running = process("import", "a.csv", "--import-chunk-events", "40", "--database-url", database.url, cwd=folder)
    until(lambda: recorded(database) >= 400, "it records", 60)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    done = recorded(database)
    assert 400 <= done < rows
    (folder / "tidelock.toml").write_text('import_sort_memory = "1MiB"\n')
    found = json.loads(run(database, "import", "a.csv", "--json").stdout)
    assert (found["finished"], found["rows"], found["accepted"]) == (True, rows, rows - done)
    assert found["resumedAfter"] > 0
    # Those of one time keep the order of the file.
    assert events(database) == [(str(n),) for n in sorted(order, key=lambda n: n // 20)]
    assert [path.name for path in folder.iterdir() if "sort" in path.name] == []


def test_a_disk_that_cannot_take_the_sorted_parts_is_named(database: Database, folder: Path) -> None:
    _unsorted(folder / "a.csv", 9_000)
    (folder / "tidelock.toml").write_text('import_sort_memory = "1MiB"\nimport_sort_directory = "gone"\n')
    result = run(database, "import", "a.csv")
    assert result.exit_code == 2
    assert "cannot be sorted in gone: No such file" in result.stderr
    assert "--as-is" in result.stderr
    assert events(database) == []


def test_a_dry_run_says_what_would_be_recorded_and_why_the_rest_would_not(database: Database, folder: Path) -> None:
    (folder / "tidelock.toml").write_text(
        '[meters.s]\nlateness = "1h"\n'
        '[meters.big]\nstream = "s"\nlateness = "10s"\nwhere = { quantity = { _gt = 5 } }\n'
    )
    (folder / "old.csv").write_text(f"stream,customerRef,ts,quantity\ns,c,{at(0)},1\ns,d,{at(0)},1\n")
    assert run(database, "import", "old.csv").exit_code == 0
    days = [("c", 0, 1), ("c", 0, 1), ("d", 0, 2), ("c", 90_000, 9), ("c", 80_000, 9), ("c", 100, 1), ("d", 50, 1)]
    lines = [f"s,{customer},{at(s)},{quantity}\n" for customer, s, quantity in days]
    (folder / "new.csv").write_text("stream,customerRef,ts,quantity\n" + "".join(lines) + f"s,c,{at(2e9)},1\ns,c,x,1\n")
    found = run(database, "import", "new.csv", "--dry-run", "--as-is", "--json")
    assert found.exit_code == 1
    told = json.loads(found.stdout)
    assert told.pop("problems")[0]["row"] == 3
    assert told == {
        "rows": 9, "accepted": 4, "duplicates": {"recorded": 2, "repeated": 0}, "conflicts": 1,
        "rejected": {"invalid_timestamp": 1, "future_timestamp": 1}, "skipped": 0, "inOrder": True,
        "adjustments": [
            {"metric": "s", "reason": "late", "count": 2}, {"metric": "big", "reason": "late", "count": 1},
        ],
    }  # fmt: skip
    assert events(database) == [("c",), ("d",)]
    # In order of time nothing of it is late.
    said = run(database, "import", "new.csv", "--dry-run")
    assert "An import would record 4." in said.stdout
    assert "would be sorted first" in said.stdout
    assert "2 duplicates: recorded already" in said.stdout
    assert "1 rejected: future_timestamp" in said.stdout
    assert "adjustments" not in said.stdout
    (folder / "twice.csv").write_text(f"stream,customerRef,ts\nt,e,{at(5)}\nt,e,{at(5)}\n")
    assert "1 duplicate: repeated in the file" in run(database, "import", "twice.csv", "--dry-run").stdout
    assert len(events(database)) == 2


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_million_rows_in_any_order_are_recorded_by_time_through_three_kills(
    database: Database, folder: Path
) -> None:
    """Prints the figures for docs/proofs.md."""
    rows = int(os.environ.get("SOAK_ROWS", "5000000"))
    seed = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
    chance = random.Random(seed)
    _unsorted(folder / "a.csv", rows, seed=seed)
    print(f"seed {seed}, {(folder / 'a.csv').stat().st_size:,} bytes")
    (folder / "tidelock.toml").write_text('import_sort_memory = "256MiB"\n')
    # Once while it sorts, twice while it records.
    for part in ("sorting", "importing", "importing"):
        before, wanted = recorded(database), chance.uniform(0.05, 0.3) * rows
        running = _Import(database, folder)
        running.until(part)
        if part == "importing":
            until(lambda least=before + wanted: recorded(database) >= least, "it records", 1800)  # type: ignore[misc]
        else:
            time.sleep(chance.uniform(0, 5))
        os.kill(running.pid, signal.SIGKILL)
        print(f"killed while {part}: {recorded(database):,} recorded, {running.end()}")
    done = recorded(database)
    assert 0 < done < rows
    running = _Import(database, folder)
    print(f"to its end: {running.end()}")
    assert recorded(database) == rows
    with database.connect_sync() as connection:
        query = b"""SELECT count(*) FROM (SELECT occurred_at - lag(occurred_at) OVER (ORDER BY ingress_sequence) AS step
            FROM events) AS stepped WHERE step < 0"""
        assert connection.execute(query).fetchall() == [(0,)]
    assert [path.name for path in folder.iterdir() if "sort" in path.name] == []


class _Import:
    """An import in a process of its own, what it says of its parts, and the most memory it had."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._process = process("import", "a.csv", "--json", "--database-url", database.url, cwd=folder)
        self.pid = self._process.pid
        self._said: list[str] = []
        self._memory = ""
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()

    def until(self, part: str) -> None:
        """It has told of this part, which it does every ten seconds."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            if line.startswith(part):
                return
        raise AssertionError("".join(self._said))

    def end(self) -> str:
        """Wait for it: the last it said of each part, and what it took."""
        assert self._process.stderr is not None
        self._said += self._process.stderr
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        _, code, used = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(code)
        self._watching.join()
        last = {line.split(" ")[0]: line.strip() for line in self._said}
        return f"{', '.join(last.values())}; {self._memory}, {used.ru_utime + used.ru_stime:.0f} s of CPU"

    def _watch(self) -> None:
        """The most it had so far: what the kernel tells at the end counts this process before it became that one."""
        with suppress(OSError):
            while found := re.search(r"VmHWM:\s+(.*)", Path(f"/proc/{self.pid}/status").read_text()):
                self._memory = found[1]
                time.sleep(0.2)
