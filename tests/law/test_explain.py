"""Explaining is exact: for random ledgers every counter is the sum of what is explained, as of any sequence.

What is explained is read from the ledger by Postgres, the counters were folded by Spark, and the model says what both
must be. `LAW_SEED` repeats a run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from decimal import localcontext
from random import Random

import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding
from tests.law.closings import closes
from tests.law.corrections import Corrections
from tests.law.ledgers import COMPUTED, Ledger, Toml
from tests.law.packs import drawn, pack, tenant_of
from tests.law.timelines import timed_definitions, timed_ledgers
from tests.ledgers import write_ledger
from tests.model import fold
from tests.model.values import EXACT
from tests.usage.proving import Proof
from tidelock.spark.runtime import Spark

#: sequences at which a pack is looked at, and at most so many counters and customers each time
_LOOKS, _EACH = 2, 80


@pytest.mark.timeout(300)
def test_every_counter_is_the_sum_of_what_is_explained_as_of_any_sequence(
    spark: Spark, databases: Databases, number: int
) -> None:
    prove(spark, databases, number, packs=1, size=25)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_very_many_counters_are_the_sum_of_what_is_explained(spark: Spark, databases: Databases, number: int) -> None:
    prove(spark, databases, number, packs=int(os.environ.get("SOAK_PACKS", "10")), size=100)


def prove(spark: Spark, databases: Databases, number: int, *, packs: int, size: int) -> None:
    chance = Random(number)
    # The first examples are small, and some have hardly any meter.
    tomls = [toml for toml in drawn(timed_definitions(), 12 * packs, number)[5:] if len(toml["meters"]) > 4]
    many = drawn(timed_ledgers(), packs * size, number)
    for place, toml in enumerate(chance.sample(tomls, packs)):
        # Counters know nothing of windows, which would only take time.
        toml = {**toml, "windows": {}}
        found = prove_pack(spark, databases, toml, many[place * size : (place + 1) * size], chance)
        print(f"pack {place + 1}: {found} counters explained", flush=True)
        assert found


def prove_pack(spark: Spark, databases: Databases, toml: Toml, some: Sequence[Ledger], chance: Random) -> int:
    tenants = [tenant_of(place, {"tenant_id": own}) for place in range(len(some)) for own in (0, 1)]
    controls = [{"type": "tick"}, *closes(toml, tenants, chance, 30)]
    packed = pack(some, chance, controls=controls, scattered=5, corrections=Corrections(toml, chance))
    with databases() as database:
        write_ledger(database, packed.events, packed.ends)
        with Folding(spark, database, toml) as folding:
            folding.advance(packed.cut(lambda: True))

        async def looked() -> int:
            async with await database.connect() as connection:
                with localcontext(EXACT):
                    proof = Proof(connection, toml, packed.events, chance, lambda some: fold(some, toml, COMPUTED))
                    return await proof.run(looks=_LOOKS, each=_EACH, folded=True)

        return asyncio.run(looked())
