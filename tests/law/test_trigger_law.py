"""The law of triggers: however the ledger is cut, folded and read, receivers are told what the model says.

Random ledgers as in `test_law`, as few tenants, with triggers on every kind of table that come, change and go amid
them. They are evaluated behind the fold, by readers that are killed and begin anew. `LAW_SEED` repeats a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from random import Random

import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding
from tests.law.ledgers import COMPUTED, Ledger, Toml
from tests.law.packs import Pack, drawn, pack
from tests.law.test_law import DRIVER, SOME, Way, advance, tables_in
from tests.law.timelines import controls, timed_definitions, timed_ledgers
from tests.law.watching import Watching
from tests.ledgers import write_ledger
from tests.model import fold
from tests.model.triggers import Transition, transitions
from tests.triggers.folded import begin_evaluation, expected, told
from tests.triggers.readers import Reader
from tidelock.definitions import parse_definitions
from tidelock.fold.redefine.catalog import write_catalog_sql
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

_TENANTS = 2
#: about so many control events amid the commits of a pack
_SCATTERED = 6
#: `test_law` shows that executors write the same changes, for which they compile every step anew
_DRIVERS = ((DRIVER, 2), (DRIVER, 1))


@pytest.mark.timeout(900)
def test_receivers_are_told_the_same_however_ledgers_are_cut_and_folded(
    spark: Spark, databases: Databases, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prove(spark, databases, number, monkeypatch, size=40, ways=[[Way("random", _DRIVERS)]])
    # Most ledgers give some thirty; one in hundreds gives half as many.
    assert len(found) > 5, "the triggers are about something"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_receivers_are_told_the_same_of_very_many_ledgers(
    spark: Spark, databases: Databases, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [SOME[place % 3] for place in range(10)]
    found = prove(spark, databases, number, monkeypatch, size=80, ways=ways)
    print(f"{len(ways)} packs of ledgers, {len(found)} transitions", flush=True)


def prove(
    spark: Spark,
    databases: Databases,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    size: int,
    ways: Sequence[Sequence[Way]],
) -> list[Transition]:
    told_of: list[Transition] = []
    tomls = drawn(timed_definitions(), 10 * len(ways), number)[9::10]
    many = drawn(timed_ledgers(), size * len(ways), number)
    chance = Random(number)
    chance.shuffle(many)
    for place, toml in enumerate(tomls):
        packed = packed_for(toml, many[place * size : (place + 1) * size], chance)
        wanted = transitions(packed.events, toml, COMPUTED)
        told_of += wanted
        for way in ways[place]:
            with databases() as database:
                run(spark, database, toml, packed, way, chance, monkeypatch)
                assert told(database) == expected(wanted), f"LAW_SEED={number}, pack {place}, {way}\n{toml}"
    return told_of


def packed_for(toml: Toml, some: Sequence[Ledger], chance: Random) -> Pack:
    """A pack of few tenants, with triggers on what its tables hold."""
    bare = _few_tenants(pack(some, chance))
    state = fold(bare.events, toml, COMPUTED)
    watching = Watching(state, tables_in(toml), chance)
    every = [*watching.some(40), *controls(toml)[:5]]
    return _few_tenants(pack(some, chance, controls=every, scattered=_SCATTERED, first=watching.one_each()))


def _few_tenants(packed: Pack) -> Pack:
    tenants = {event.tenant_id for event in packed.events} - {CONTROL}
    fewer = {CONTROL: CONTROL} | {tenant: f"t{place % _TENANTS}" for place, tenant in enumerate(sorted(tenants))}
    return Pack([replace(event, tenant_id=fewer[event.tenant_id]) for event in packed.events], packed.ends)


def run(
    spark: Spark,
    database: Database,
    toml: Toml,
    packed: Pack,
    way: Way,
    chance: Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fold range after range, and evaluate behind it at random moments."""
    write_ledger(database, packed.events, packed.ends)
    begin_evaluation(database)
    with Folding(spark, database, toml) as folding:
        folding.store.execute(write_catalog_sql(1, parse_definitions(toml), folding.range_fold.tables.values()))
        folding.store.commit()
        reader = Reader(database, chance, monkeypatch)
        for range_, by in zip(way.ranges(packed, chance), cycle(way.readers), strict=False):
            advance(spark, folding, range_, by)
            if chance.random() < 0.2:
                reader.read()
        reader.finish(packed.ends[-1])
        reader.close()
