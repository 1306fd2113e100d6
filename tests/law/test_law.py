"""The law: however the ledger is cut and whoever reads it, tables, watermarks, times and changes are the model's.

Random ledgers, packed as tenants of one: a pack has definitions of its own and is folded in every way. What fails is
told with the tenant's small ledger, made smaller still. `LAW_SEED` repeats a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding, Picture, differences, expected
from tests.law.closings import closes, moved_after_close
from tests.law.corrections import Corrections
from tests.law.ledgers import COMPUTED, Ledger, Toml
from tests.law.packs import Pack, drawn, pack, tenant_of
from tests.law.timelines import controls, timed_definitions, timed_ledgers
from tests.ledgers import write_ledger
from tests.model import fold
from tidelock.columns import BIGINT, STRING, ColumnType
from tidelock.definitions import parse_definitions
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import Table, tables_of

ROOT = Path(__file__).parent.parent.parent
#: ranges up to so many events are the driver's
DRIVER, EXECUTORS = 10**9, 1
#: for making a failing ledger smaller
SHRINK_S = 90


#: up to how many events the driver reads, and the partitions of larger ranges
Reader = tuple[int, int]
READERS: Sequence[Reader] = ((DRIVER, 2), (EXECUTORS, 2), (EXECUTORS, 1))
#: executors take five times as long as the driver to fold a small range
MIXED: Sequence[Reader] = ((EXECUTORS, 2), (DRIVER, 2), (DRIVER, 1), (EXECUTORS, 1), (DRIVER, 2))
CUTS = ("commits", "everything", "random")


@dataclass(frozen=True)
class Way:
    """One way to fold a ledger: how it is cut, and who reads its ranges, in turns."""

    cut: str
    readers: Sequence[Reader]

    def ranges(self, packed: Pack, chance: Random) -> list[tuple[int, int]]:
        joined: dict[str, Callable[[], bool]] = {
            "commits": lambda: False,
            "everything": lambda: True,
            "random": lambda: chance.random() < 0.5,
        }
        return packed.cut(joined[self.cut])


#: for a pack each: readers take over from each other at every cut, and what is stored is that of the driver alone
FEW = [[Way("commits", READERS[:1]), Way("everything", MIXED)], [Way("random", MIXED)]]
#: one of each for a pack, in turns
TAKEN_OVER = [Way(cut, MIXED) for cut in ("everything", "random", "commits")]
#: for a pack each: every cut and every reader; three packs see all their pairs
SOME = [[Way(cut, (READERS[(number + turn) % 3],)) for number, cut in enumerate(CUTS)] for turn in range(3)]


@pytest.mark.timeout(900)
def test_the_law_holds_for_random_ledgers(spark: Spark, databases: Databases, number: int) -> None:
    prove(spark, databases, number, size=60, ways=FEW)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_law_holds_for_very_many_ledgers(spark: Spark, databases: Databases, number: int) -> None:
    prove(spark, databases, number, size=1000, ways=[[*SOME[place % 3], TAKEN_OVER[place % 3]] for place in range(10)])


def prove(spark: Spark, databases: Databases, number: int, *, size: int, ways: Sequence[Sequence[Way]]) -> None:
    """Fold packs, each in ways of its own, and compare them with the model and with each other."""
    packs = len(ways)
    # Examples that follow each other are alike, and the first ones are small.
    tomls = drawn(timed_definitions(), 10 * packs, number)[9::10]
    many = drawn(timed_ledgers(), packs * size, number)
    many += drawn(timed_ledgers(), packs * size - len(many), number + 1) if len(many) < packs * size else []
    chance = Random(number)
    chance.shuffle(many)
    start, ranges = time.monotonic(), 0
    for place, toml in enumerate(tomls):
        some = many[place * size : (place + 1) * size]
        ranges += prove_pack(spark, databases, toml, some, chance=chance, ways=ways[place])
        print(f"{(place + 1) * size} ledgers, {ranges} ranges, {time.monotonic() - start:.0f} s", flush=True)


def prove_pack(
    spark: Spark, databases: Databases, toml: Toml, some: Sequence[Ledger], chance: Random, ways: Sequence[Way]
) -> int:
    packed = packed_for(toml, some, chance)
    wanted = expected(fold(packed.events, toml, COMPUTED), toml)
    stored: dict[Way, Sequence[str]] = {}
    ranges = 0
    with databases() as database:
        write_ledger(database, packed.events, packed.ends)
        for way in ways:
            cut = way.ranges(packed, chance)
            found = folded(spark, database, toml, cut, way)
            assert not moved_after_close(packed.events, toml, found.changes), "after a close no event moves a value"
            if different := differences(found, wanted):
                tenant, difference = next(iter(different.items()))
                why = explained(spark, databases, toml, packed, tenant=tenant, way=way)
                pytest.fail(f"{len(different)} tenants differ, folded by {way}\n{difference}\n{why}", pytrace=False)
            stored[way] = found.stored
            ranges += len(cut)
    first = stored[ways[0]]
    for way, rows in stored.items():
        assert rows == first, f"{way} stores something else than {ways[0]}, beside the tables' columns"
    return ranges


def folded(spark: Spark, database: Database, toml: Toml, cut: Sequence[tuple[int, int]], way: Way) -> Picture:
    with Folding(spark, database, toml) as folding:
        for range_, reader in zip(cut, cycle(way.readers), strict=False):
            advance(spark, folding, range_, reader)
        return folding.picture()


def advance(spark: Spark, folding: Folding, range_: tuple[int, int], reader: Reader) -> None:
    """Fold a range as this reader does."""
    small_events, count = reader
    # Where there is one, windows are for executors, as on a cluster; else they come to the driver, in parts.
    folding.range_fold = folding.reader(small_events, gathers=count > 1, part_events=50)
    with partitions(spark, count):
        folding.advance([range_])


@contextmanager
def partitions(spark: Spark, count: int) -> Iterator[None]:
    """Spark as if it had so many cores."""
    cores, shuffled = spark.cores, spark.session.conf.get("spark.sql.shuffle.partitions")
    spark.cores = count
    spark.session.conf.set("spark.sql.shuffle.partitions", str(count))
    try:
        yield
    finally:
        spark.cores = cores
        spark.session.conf.set("spark.sql.shuffle.partitions", str(shuffled))


def packed_for(toml: Toml, some: Sequence[Ledger], chance: Random) -> Pack:
    tenants = [tenant_of(number, {"tenant_id": own}) for number in range(len(some)) for own in (0, 1)]
    said = controls(toml)
    said = [*said, *closes(toml, tenants, chance, len(said))]
    return pack(some, chance, controls=said, scattered=4, corrections=Corrections(toml, chance))


def explained(spark: Spark, databases: Databases, toml: Toml, packed: Pack, tenant: str, way: Way) -> str:
    """What is wrong with a tenant's events by themselves, as few as it gets. Control events stay where they are."""

    def wrong(tried: Pack) -> str | None:
        with databases() as database:
            write_ledger(database, tried.events, tried.ends)
            try:
                found = folded(spark, database, toml, way.ranges(tried, Random(0)), way)
            except Exception as error:
                return repr(error)[:2000]
        return next(iter(differences(found, expected(fold(tried.events, toml, COMPUTED), toml)).values()), None)

    alone = packed.only(lambda event: event.tenant_id == tenant)
    if wrong(alone) is None:
        return "alone, that tenant's ledger is folded as it should be: tenants or cuts are mixed up"
    small = smaller(alone, lambda tried: wrong(tried) is not None)
    events = "\n".join(f"  {event}" for event in small.events)
    return f"alone and smaller:\n{wrong(small)}\ndefinitions = {toml}\nevents:\n{events}"


def smaller(packed: Pack, fails: Callable[[Pack], bool]) -> Pack:
    """Without the events that it does not take: halves first, single ones last."""
    deadline = time.monotonic() + SHRINK_S
    kept = [event.ingress_sequence for event in packed.events if event.stream != CONTROL]
    size = len(kept) // 2
    while size:
        for start in reversed(range(0, len(kept), size)):
            rest = kept[:start] + kept[start + size :]
            if rest and time.monotonic() < deadline and fails(_only(packed, rest)):
                kept = rest
        size //= 2
    return _only(packed, kept)


def tables_in(toml: Toml) -> dict[str, Table]:
    """The tables that definitions make, calculated columns too."""
    types: dict[str, ColumnType] = {"twice": BIGINT, "label": STRING}
    calculated = {name: types[name] for name in toml["streams"]["typed"].get("calculated", {})}
    return tables_of(parse_definitions(toml), {"typed": calculated})


def _only(packed: Pack, sequences: Sequence[int]) -> Pack:
    kept = frozenset(sequences)
    return packed.only(lambda event: event.ingress_sequence in kept)
