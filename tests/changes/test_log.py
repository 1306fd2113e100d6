"""The log, page by page: all of it in order, or the reader is told that some is gone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

from tests.views.folding import OTHERS, Folding, folding, put
from tests.views.histories import TABLE
from tidelock.changes import log, segments
from tidelock.changes.log import beginning, prune, read_page, read_state
from tidelock.errors import ResumeExpired
from tidelock.fold import store
from tidelock.postgres.database import Database
from tidelock.views.threads import Connection

pytestmark = pytest.mark.check

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
    place: log.LogCursor | None = beginning(after)
    while place is not None:
        page = read_page(connection, tables, place, after=after, through=through)
        found: Found = []
        for _, table, changes in page.changes:
            rows = changes.to_pylist()
            found += [(table, row["source_timestamp"], row["key"]) for row in rows if row["source_timestamp"] > after]
        yield found
        place = page.cursor


@pytest.mark.parametrize("seed", range(8))
def test_lanes_are_told_as_if_they_were_one(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, database: Database, seed: int
) -> None:
    """Whatever the lanes, the sizes of segments and of pages."""
    chance = random.Random(seed)
    monkeypatch.setattr(log, "_PAGE_ROWS", chance.choice([1, 5, 20, 1000]))
    monkeypatch.setattr(log, "_PAGE_PARTS", chance.choice([1, 3, 500]))
    wanted: Found = []
    with folding(database) as made:
        for hi in range(2, 5):
            for table in (OTHERS.name, TABLE.name):
                places = [(100 * hi + time, key) for time in range(8) for key in "abcdefgh"]
                changes = sorted(chance.sample(places, 30))
                wanted += [(table, *place) for place in changes]
                lanes = {key: chance.randrange(chance.choice([1, 2, 5])) for key in "abcdefgh"}
                for lane in set(lanes.values()):
                    of_lane = [place for place in changes if lanes[place[1]] == lane]
                    parts = encoded(of_lane, rows_max=chance.choice([1, 2, 4, 30]))
                    made.store.record_segments(hi, table, lane, parts)
        made.store.commit()
    both = [OTHERS.name, TABLE.name]
    assert [each for page in pages(connection, both, after=0, through=99) for each in page] == wanted
    own = [each for page in pages(connection, both[1:], after=303, through=99) for each in page]
    assert own == [each for each in wanted if each[0] == TABLE.name and each[1] > 303]


def test_of_several_lanes_a_page_has_two_parts_of_each(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setattr(log, "_PAGE_ROWS", 1)
    with folding(database) as made:
        for lane, key in enumerate("abc"):
            made.store.record_segments(
                9, OTHERS.name, lane, encoded([(time, key) for time in range(1, 10)], rows_max=2)
            )
        made.store.commit()
    sizes = [len(page) for page in pages(connection, [OTHERS.name], after=0, through=9)]
    # Each lane has five parts. Through the end of a lane's second part all are told.
    assert sizes[0] == 10
    assert max(sizes) <= 3 * 2 * 2
    assert sum(sizes) == 27


def encoded(places: list[tuple[int, str]], rows_max: int) -> list[segments.Segment]:
    changes = [{"tenant_id": "t", "key": key, "source_timestamp": time, "new": {"n": time}} for time, key in places]
    return segments.encode(pa.Table.from_pylist(changes, segments.change_schema(OTHERS.columns)), rows_max)


def test_a_look_shows_how_far_the_fold_is(connection: Connection, fold: Folding) -> None:
    assert read_state(connection) == ((fold.sequence, fold.time), 1, 0)
    prune(connection, 0)
    assert read_state(connection).pruned == fold.time
    connection.execute("DELETE FROM cursors; DELETE FROM fold_definitions")
    assert read_state(connection) == ((0, 0), None, fold.time)


def test_pages_have_everything_of_some_tables_between_two_places(connection: Connection, fold: Folding) -> None:
    whole = [each for page in pages(connection, ["things", "others"], after=0, through=99) for each in page]
    for table in (TABLE.name, OTHERS.name):
        own = [each for page in pages(connection, [table], after=0, through=99) for each in page]
        assert own == [each for each in whole if each[0] == table]
        assert [time for _, time, _ in own] == sorted(time for _, time, _ in own)
    assert len(whole) == len(set(whole)) > 30
    times = sorted({time for _, time, _ in whole})
    ends = dict(enumerate(fold.times, start=1))
    for after in times:
        for through in (1, 4, 13, 25):
            found = [each for page in pages(connection, ["things"], after=after, through=through) for each in page]
            assert found == [each for each in whole if each[0] == "things" and after < each[1] <= ends[through]]
    assert list(pages(connection, ["things"], after=times[-1], through=99)) == [[]]
    assert list(pages(connection, ["nothing"], after=0, through=99)) == [[]]


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_that_pruning_overtakes_gets_an_error(connection: Connection, fold: Folding, seed: int) -> None:
    chance = random.Random(seed)
    tables = chance.choice([["things"], ["others"], ["things", "others"]])
    after = chance.choice([0, *fold.times])
    whole = [each for page in pages(connection, tables, after=after, through=99) for each in page]
    found: Found = []
    try:
        for page in pages(connection, tables, after=after, through=99):
            found += page
            if chance.random() < 0.5:
                prune(connection, 0, keep_after_sequence=chance.randrange(fold.sequence))
    except ResumeExpired:
        assert found == whole[: len(found)]
    else:
        assert found == whole
