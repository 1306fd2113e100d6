"""Salts on a real Postgres: two-step rotation that no retry slips through, with processes that are not restarted."""

import asyncio
from typing import Any

import pytest

from tests.recording import record, rows, sequencing
from tidelock.definitions import Definitions
from tidelock.errors import SettingsError
from tidelock.ingest.admit import Writer
from tidelock.ingest.identity import Salts, canonical
from tidelock.ingest.intake import Intake
from tidelock.ingest.wire import WireEvent
from tidelock.instants import format_nine, parse_rfc3339
from tidelock.ledger.salts import SALT_BYTES_MAX, add_salt, open_salts, promote_salt, read_salts
from tidelock.ledger.sequencer import Sequencer
from tidelock.model import Accepted, Answer, Duplicate, Verdict
from tidelock.postgres.database import Database
from tidelock.settings import Settings

DAY = "2026-01-01T00:00:00Z"
EVENT = {"ts": DAY, "customerRef": "cus_1"}


def key_under(salt: str) -> str:
    return Salts((salt,), 0).derive(canonical("default", "s", "cus_1", None, format_nine(parse_rfc3339(DAY))))[0]


async def salted(database: Database, *steps: Any) -> tuple[str, ...]:
    """The salts after adding texts and promoting numbers, one after the other."""
    async with await database.connect() as connection:
        for step in steps:
            await (promote_salt if isinstance(step, int) else add_salt)(connection, step)
        return (await read_salts(connection)).salts


def intake(sequencer: Sequencer) -> Intake:
    return Intake(sequencer, Definitions(), Settings(), streams_open=True)


async def take(into: Intake) -> Verdict:
    answer: Answer = await into.take([WireEvent(stream="s", customer_ref="cus_1", ts=DAY)], Writer(), escapes=False)
    return answer.results[0]


async def test_the_first_start_records_the_configured_salt_or_makes_one(database: Database) -> None:
    async with await database.connect() as connection:
        assert (await open_salts(connection, "first")).salts == ("first",)
        assert (await open_salts(connection, None)).salts == ("first",)


async def test_a_generated_salt_is_long_and_stays(database: Database) -> None:
    async with await database.connect() as connection:
        (made,) = (await open_salts(connection, None)).salts
        assert len(made) >= 43
        assert (await open_salts(connection, None)).salts == (made,)


async def test_first_starts_at_the_same_time_agree_on_one_salt(database: Database) -> None:
    async def start() -> tuple[str, ...]:
        async with await database.connect() as connection:
            return (await open_salts(connection, None)).salts

    found = await asyncio.gather(*(start() for _ in range(8)))
    assert len(set(found)) == 1


async def test_until_something_is_recorded_a_configured_salt_replaces_the_one_that_was_made(database: Database) -> None:
    async with await database.connect() as connection:
        made = await open_salts(connection, None)
        configured = await open_salts(connection, "mine")
        assert configured.salts == ("mine",)
        assert configured.version > made.version
        await add_salt(connection, "next")
        assert (await open_salts(connection, "next")).salts == ("mine", "next")
        assert (await open_salts(connection, "other")).salts == ("other", "next")
        with pytest.raises(SettingsError, match="1 to 1024 bytes"):
            await open_salts(connection, "x" * (SALT_BYTES_MAX + 1))


async def test_a_running_process_takes_up_a_salt_that_replaced_its_own(database: Database) -> None:
    async with sequencing(database) as running:
        async with await database.connect() as connection:
            await open_salts(connection, "mine")
        verdict = await take(intake(running))
    assert isinstance(verdict, Accepted)
    assert verdict.idempotency_key == key_under("mine")


async def test_a_configured_salt_that_is_not_recorded_refuses_the_start(database: Database) -> None:
    async with sequencing(database, salt="first") as sequencer:
        await record(sequencer, EVENT)
    async with await database.connect() as connection:
        with pytest.raises(SettingsError, match="salts add") as refused:
            await open_salts(connection, "other")
    assert refused.value.exit_code == 2
    assert "other" not in refused.value.message


async def test_a_salt_that_was_added_derives_nothing_until_it_is_promoted(database: Database) -> None:
    async with sequencing(database, salt="one") as sequencer:
        assert await salted(database, "two") == ("one", "two")
        verdict = await take(intake(sequencer))
    assert isinstance(verdict, Accepted)
    assert verdict.idempotency_key == key_under("one")


async def test_promotion_moves_one_salt_to_the_front_and_keeps_the_order_of_the_others(database: Database) -> None:
    assert await salted(database, "a", "b", "c", "d", 2) == ("c", "a", "b", "d")
    assert await salted(database, 3) == ("d", "c", "a", "b")
    assert await salted(database, 0) == ("d", "c", "a", "b")
    assert await salted(database, 1) == ("c", "d", "a", "b")
    assert await rows(database, "SELECT position FROM salts ORDER BY position") == [(0,), (1,), (2,), (3,)]


async def test_promotion_keeps_when_each_salt_was_added(database: Database) -> None:
    await salted(database, "a", "b")
    before = await rows(database, "SELECT salt, added_at FROM salts ORDER BY salt")
    await salted(database, 1)
    assert await rows(database, "SELECT salt, added_at FROM salts ORDER BY salt") == before


@pytest.mark.parametrize("position", [-1, 2, 10**9])
async def test_a_salt_that_is_not_there_cannot_be_promoted(database: Database, position: int) -> None:
    with pytest.raises(SettingsError, match="available: 0 to 1"):
        await salted(database, "a", "b", position)


@pytest.mark.parametrize("salt", ["a\0b", "x" * (SALT_BYTES_MAX + 1), "ü" * SALT_BYTES_MAX])
async def test_a_salt_that_cannot_be_stored_is_refused(database: Database, salt: str) -> None:
    with pytest.raises(SettingsError, match="1 to 1024 bytes"):
        await salted(database, salt)


async def test_a_salt_is_added_once(database: Database) -> None:
    with pytest.raises(SettingsError, match="already known"):
        await salted(database, "a", "a")


async def test_an_event_recorded_under_an_older_salt_is_a_duplicate_with_its_old_key(database: Database) -> None:
    async with sequencing(database, salt="one") as sequencer:
        assert isinstance((await record(sequencer, EVENT))[0], Accepted)
    await salted(database, "two", 1)
    async with sequencing(database, salt="two") as sequencer:
        assert await record(sequencer, EVENT) == [Duplicate(1, key_under("one"), "derived")]
        (later,) = await record(sequencer, {**EVENT, "resourceId": "r"})
    assert isinstance(later, Accepted)
    assert later.idempotency_key != key_under("one")
    async with sequencing(database, salt="one") as sequencer:
        # A process that still has the old one configured derives with the promoted one all the same.
        assert sequencer.salts.salts == ("two", "one")


async def test_running_processes_take_up_a_rotation_at_their_next_commit(database: Database) -> None:
    async with sequencing(database, salt="one") as here, sequencing(database, salt="one") as there:
        await salted(database, "two")
        await salted(database, 1)
        first = await take(intake(here))
        assert isinstance(first, Accepted)
        assert first.idempotency_key == key_under("two")
        assert await take(intake(there)) == Duplicate(1, key_under("two"), "derived")
        assert here.salts.salts == there.salts.salts == ("two", "one")


async def test_no_event_slips_through_while_salts_are_rotated_again_and_again(database: Database) -> None:
    async with sequencing(database, salt="s0") as here, sequencing(database, salt="s0") as there:

        async def send(into: Intake) -> list[Verdict]:
            return [await take(into) for _ in range(30)]

        async def rotate() -> None:
            for number in range(1, 6):
                await salted(database, f"s{number}")
                await salted(database, number)

        first, second, _ = await asyncio.gather(send(intake(here)), send(intake(there)), rotate())
    kinds = [type(verdict) for verdict in [*first, *second]]
    assert kinds.count(Accepted) == 1
    assert kinds.count(Duplicate) == 59
    assert await rows(database, "SELECT count(*) FROM events") == [(1,)]
