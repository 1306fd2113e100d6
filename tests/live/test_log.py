"""The log, page by page: all of it in order, or the reader is told that some is gone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest

from tests.live.folding import OTHERS, Folding, folding, put
from tests.live.histories import TABLE
from tidelock.changes.retention import prune
from tidelock.errors import ResumeExpired
from tidelock.fold import segments, store
from tidelock.fold.segments import decode
from tidelock.ledger.database import Database
from tidelock.live import log
from tidelock.live.log import beginning, look, read_page
from tidelock.live.readers import Connection

Found = list[tuple[str, int, str]]


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.connect_sync() as connected:
        yield connected


@pytest.fixture
def fold(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folding]:
    """Ranges of several segments, of which pages have but a few."""
    monkeypatch.setattr(store, "encode", partial(segments.encode, rows_max=2))
    monkeypatch.setattr(log, "_PAGE_ROWS", 3)
    monkeypatch.setattr(log, "_PAGE_PARTS", 2)
    with folding(database) as made:
        for n in range(8):
            made.fold(
                [put("a", i=n), put("b", i=n), put("a", table=OTHERS, n=n)],
                [put("c", i=n)] if n % 3 else [],
                [put("a", table=OTHERS, n=-n), put("b", table=OTHERS, n=n)] if n % 2 else [put("a", i=-n)],
            )
        yield made


def pages(connection: Connection, tables: list[str], *, after: int, through: int) -> Iterator[Found]:
    place: log.Place | None = beginning(after)
    while place is not None:
        page = read_page(connection, tables, place, after=after, through=through)
        found: Found = []
        for table, data in page.segments:
            rows = decode(data).to_pylist()
            found += [(table, row["source_timestamp"], row["key"]) for row in rows if row["source_timestamp"] > after]
        yield found
        place = page.place


def test_a_look_tells_how_far_the_fold_is(connection: Connection, fold: Folding) -> None:
    assert look(connection) == ((fold.sequence, fold.time), 1, 0)
    prune(connection, 0)
    assert look(connection).pruned == fold.time
    connection.execute("DELETE FROM cursors; DELETE FROM fold_definitions")
    assert look(connection) == ((0, 0), None, fold.time)


def test_pages_have_everything_of_some_tables_between_two_places(connection: Connection, fold: Folding) -> None:
    everything = [each for page in pages(connection, ["things", "others"], after=0, through=99) for each in page]
    for table in (TABLE.name, OTHERS.name):
        own = [each for page in pages(connection, [table], after=0, through=99) for each in page]
        assert own == [each for each in everything if each[0] == table]
        assert [time for _, time, _ in own] == sorted(time for _, time, _ in own)
    assert len(everything) == len(set(everything)) > 30
    times = sorted({time for _, time, _ in everything})
    ends = dict(enumerate(fold.times, start=1))
    for after in times:
        for through in (1, 4, 13, 25):
            found = [each for page in pages(connection, ["things"], after=after, through=through) for each in page]
            assert found == [each for each in everything if each[0] == "things" and after < each[1] <= ends[through]]
    assert list(pages(connection, ["things"], after=times[-1], through=99)) == [[]]
    assert list(pages(connection, ["nothing"], after=0, through=99)) == [[]]


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_whom_pruning_overtakes_is_told_so(connection: Connection, fold: Folding, seed: int) -> None:
    chance = random.Random(seed)
    tables = chance.choice([["things"], ["others"], ["things", "others"]])
    after = chance.choice([0, *fold.times])
    everything = [each for page in pages(connection, tables, after=after, through=99) for each in page]
    found: Found = []
    try:
        for page in pages(connection, tables, after=after, through=99):
            found += page
            if chance.random() < 0.5:
                prune(connection, 0, keep_after_sequence=chance.randrange(fold.sequence))
    except ResumeExpired:
        assert found == everything[: len(found)]
    else:
        assert found == everything
