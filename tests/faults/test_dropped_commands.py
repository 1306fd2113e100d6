"""Commands that work for long outlive a connection that drops at any moment: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commandline import events, process, run
from tests.cli.test_ordered import DRAIN, FIRST, ORDERED, QUIET, SECOND, Output, define_ordered
from tests.conftest import Databases
from tests.dropping import Drop, Dropping, dropping, sweep
from tests.losttails import anchored
from tests.sources import oldtables
from tests.views.folding import folding, put
from tests.views.histories import TABLE
from tidelock.errors import Unreachable
from tidelock.ledger.opening import record_control
from tidelock.postgres.database import Database
from tidelock.settings import Settings

SEED = 20261118
#: drops tried in the normal suite; the soak tries all
SAMPLED = pytest.mark.parametrize(
    "sample", [6, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["some", "all"]
)
#: how many connections are refused after the drop, as by a server that restarts
REFUSED = pytest.mark.parametrize("refusals", [0, pytest.param(3, marks=pytest.mark.soak)])
ROWS = 8


@pytest.fixture
def tenants() -> Iterator[str]:
    """A name for each run: they share a database."""
    return (f"t{number}" for number in itertools.count())


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("stream,customerRef\n" + "".join(f"s,{n}\n" for n in range(ROWS)))
    return file


def customers(database: Database, tenant: str) -> list[str]:
    return [customer for owner, customer in events(database, "tenant_id, customer_ref") if owner == tenant]


def filled(database: Database, rows: Path) -> None:
    """Events to read; and the ledger has its salts and partitions, so that the next command does the same each time."""
    assert run(database, "import", rows).exit_code == 0


@SAMPLED
@REFUSED
def test_an_import_outlives_a_connection_dropped_at_any_moment(
    database: Database, rows: Path, tenants: Iterator[str], sample: int | None, refusals: int
) -> None:
    filled(database, rows)

    def imported(drop: Drop | None) -> Dropping:
        tenant = next(tenants)
        with dropping(database, drop) as made:
            result = run(made.database, "import", rows, "--json", "--import-chunk-events", "2", "--tenant", tenant)
        assert result.exit_code == 0, f"{made.dropped}: {result.output}"
        found = json.loads(result.stdout)
        assert found["finished"], made.dropped
        assert found["accepted"] + found["duplicates"] == ROWS, made.dropped
        assert customers(database, tenant) == [str(n) for n in range(ROWS)], made.dropped
        return made

    sweep(imported, sample=sample, seed=SEED, refusals=refusals).check()
    verified = run(database, "verify")
    assert verified.exit_code == 0, verified.output


@SAMPLED
def test_a_ledger_is_made_by_an_import_whose_first_connections_drop(
    empty_databases: Databases, rows: Path, sample: int | None
) -> None:
    def imported(drop: Drop | None) -> Dropping:
        with empty_databases() as database, dropping(database, drop) as made:
            result = run(made.database, "import", rows)
            assert result.exit_code == 0, f"{made.dropped}: {result.output}"
            assert events(database) == [(str(n),) for n in range(ROWS)], made.dropped
        return made

    sweep(imported, sample=3 if sample else None, seed=SEED).check()


def test_an_import_as_a_process_of_its_own_outlives_drops_at_its_start_and_its_end(
    database: Database, rows: Path, tenants: Iterator[str], tmp_path: Path
) -> None:
    def imported(drop: Drop | None) -> Dropping:
        tenant = next(tenants)
        with dropping(database, drop) as made:
            running = process("import", rows, "--json", "--tenant", tenant, "--database-url", made.url, cwd=tmp_path)
            said, problems = running.communicate(timeout=120)
        assert (running.returncode, problems) == (0, ""), made.dropped
        assert json.loads(said)["finished"]
        assert customers(database, tenant) == [str(n) for n in range(ROWS)]
        return made

    filled(database, rows)
    moments = imported(None).moments
    for drop in (Drop(1, refusals=2), Drop(moments - 1, "told")):
        assert imported(drop).dropped is not None


def test_a_database_that_never_answers_again_is_reported_after_a_while(
    database: Database, rows: Path, tmp_path: Path
) -> None:
    with dropping(database, Drop(20, refusals=1 << 30)) as made:
        result = run(made.database, "import", rows, env={"TIDELOCK_OUTAGE_PATIENCE": "1s"})
    assert result.exit_code == 3
    assert "closed the connection" in result.stderr
    assert "Traceback" not in result.stderr


@SAMPLED
@pytest.mark.parametrize("side", ["ledger", "older"])
def test_a_backfill_outlives_a_connection_dropped_at_any_moment(
    database: Database, databases: Databases, tenants: Iterator[str], sample: int | None, side: str
) -> None:
    with databases() as older:
        oldtables.make(older, 20, seed=SEED)
        # A row that the ledger refuses, and one without a place: they are told of once each.
        oldtables.change(older, "UPDATE workflow_events SET type = '' WHERE id = 7")
        keys = [key for key in oldtables.order(older) if key != "workflow_events:7"]

        def filled_back(drop: Drop | None) -> Dropping:
            tenant = next(tenants)
            with dropping(older if side == "older" else database, drop) as made:
                ledger, source = (database, made.database) if side == "older" else (made.database, older)
                result = run(
                    ledger, "backfill", "--from", source.url, "--table", "workflow_events", "--tenant", tenant,
                    "--json", env={"TIDELOCK_BACKFILL_CHUNK_EVENTS": "3"},
                )  # fmt: skip
            assert result.exit_code == 1, f"{made.dropped}: {result.output}"
            found = json.loads(result.stdout)
            assert found["finished"], made.dropped
            assert [problem["row"] for problem in found["problems"]] == [1 + oldtables.order(older).index(
                "workflow_events:7")], made.dropped  # fmt: skip
            recorded = [key for owner, key in events(database, "tenant_id, idempotency_key") if owner == tenant]
            assert recorded == keys, made.dropped
            return made

        sweep(filled_back, sample=sample, seed=SEED).check()


@SAMPLED
def test_an_export_outlives_a_connection_dropped_at_any_moment(
    database: Database, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: int | None
) -> None:
    filled(database, rows)
    monkeypatch.setattr("tidelock.sources.files.exporting._PAGE_ROWS", 3)

    def exported(drop: Drop | None) -> Dropping:
        file = tmp_path / "out.jsonl"
        with dropping(database, drop) as made:
            result = run(made.database, "export", "-o", file)
        assert result.exit_code == 0, f"{made.dropped}: {result.output}"
        found = [json.loads(line)["ingressSequence"] for line in file.read_text().splitlines()]
        assert found == list(range(1, ROWS + 1)), made.dropped
        file.unlink()
        return made

    sweep(exported, sample=sample, seed=SEED).check()


@SAMPLED
@pytest.mark.parametrize("arguments", [["--after", "0"], ["-n", "5"]], ids=["all", "last"])
def test_a_tail_shows_each_event_once_whenever_its_connection_drops(
    database: Database, rows: Path, monkeypatch: pytest.MonkeyPatch, sample: int | None, arguments: list[str]
) -> None:
    filled(database, rows)
    monkeypatch.setattr("tidelock.cli.tail._PAGE_EVENTS", 3)
    check_lines(database, sample, "tail", *arguments, "--json")


@SAMPLED
def test_a_trace_outlives_a_connection_dropped_at_any_moment(
    database: Database, tmp_path: Path, sample: int | None
) -> None:
    file = tmp_path / "caused.jsonl"
    file.write_text("".join(f'{{"stream":"s","causalityKey":"run","customerRef":"{n}"}}\n' for n in range(4)))
    filled(database, file)
    check_lines(database, sample, "trace", "run", "--json")


@SAMPLED
@pytest.mark.parametrize("arguments", [[], ["-n", "3"]], ids=["all", "last"])
def test_changes_are_shown_once_each_whenever_the_connection_drops(
    database: Database, sample: int | None, arguments: list[str]
) -> None:
    with folding(database) as fold:
        # A range of several collections, and a collection of several keys: interrupted amid, it goes on amid.
        fold.fold([put(key, i=1) for key in "abc"], [put("b", i=2)])
        fold.fold([put(key, i=3) for key in "abcd"])
    check_lines(database, sample, "changes", TABLE.name, *arguments, "--json")


@SAMPLED
@pytest.mark.parametrize("stream", ["trades", "quiet"])
@pytest.mark.parametrize("arguments", [["--after", "0"], ["-n", "3"]], ids=["all", "last"])
def test_an_ordered_tail_shows_each_row_once_whenever_its_connection_drops(
    database: Database, monkeypatch: pytest.MonkeyPatch, sample: int | None, stream: str, arguments: list[str]
) -> None:
    monkeypatch.setattr("tidelock.views.ordered._PAGE_ROWS", 2)
    define_ordered(database)
    output = Output(database, ORDERED if stream == "trades" else QUIET)
    for released in (FIRST, SECOND, DRAIN):
        output.release(*released)
    check_lines(database, 2 if sample else None, "tail", "--ordered", stream, *arguments, "--json")


@SAMPLED
def test_a_control_event_is_recorded_or_refused_in_words_whenever_the_connection_drops(
    databases: Databases, rows: Path, tmp_path: Path, sample: int | None
) -> None:
    """What `drain`, triggers and the fold record with. Until it commits, a drop is ridden out."""
    anchors = (tmp_path / f"anchor{number}.jsonl" for number in itertools.count())
    #: where the third connection begins, after the one that looks for a lost tail and the one that reads the salts
    committing: list[int] = []

    def recorded(drop: Drop | None) -> Dropping:
        with databases() as database:
            filled(database, rows)
            anchor = next(anchors)
            asyncio.run(anchored(database, anchor))
            with dropping(database, drop) as made:
                settings = Settings(data=tmp_path, database_url=made.url, anchor=anchor)
                try:
                    sequences = [(record_control(settings, made.database, {"type": "tick"}).ingress_sequence,)]
                except Unreachable:
                    if drop is None or drop.at < committing[0]:
                        raise
                    sequences = []
            if drop is None:
                committing.append([at for at, what in enumerate(made.seen, 1) if what == "connect"][2])
            found = [row for row in events(database, "ingress_sequence") if row > (ROWS,)]
            assert found == sequences or (not sequences and found == [(ROWS + 1,)]), made.dropped
        return made

    sweep(recorded, sample=sample, seed=SEED).check()


def check_lines(database: Database, sample: int | None, *arguments: str) -> None:
    """A command that reads says the same with a dropped connection as without."""
    expected = run(database, *arguments).stdout

    def said(drop: Drop | None) -> Dropping:
        with dropping(database, drop) as made:
            result = run(made.database, *arguments)
        assert result.exit_code == 0, f"{made.dropped}: {result.output}"
        assert result.stdout == expected, made.dropped
        return made

    assert expected
    sweep(said, sample=sample, seed=SEED).check()
