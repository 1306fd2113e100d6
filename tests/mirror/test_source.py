"""The source: messages as every other reader gets the events, byte for byte, and pages that are read ahead."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest

from tests.recording import record, rows, sequencing
from tidelock.instants import EARLIEST, format_instant
from tidelock.ledger.reader import Slice, read_events
from tidelock.mirror import messages as sources
from tidelock.mirror.messages import LedgerPages, Message, messages_of
from tidelock.postgres.database import Database

SEED = 20261116
CHARACTERS = [*map(chr, range(1, 0x180)), "\u2028", "\u2029", "\ufeff", "\uffff", "😀", "'", "\\", '"']
ENDS = (0, 1, 999, 1_000, 999_999, 1_000_000, 999_999_999)


def text_by(chance: random.Random) -> str:
    return "".join(chance.choices(CHARACTERS, k=chance.randint(1, 20)))


def event_by(chance: random.Random) -> dict[str, Any]:
    """Any event that ingest takes, with texts and instants of every kind."""
    seconds = chance.choice([EARLIEST // 10**9, -1, 0, 1_700_000_000 + chance.randrange(10**7)])
    instant = seconds * 10**9 + chance.choice([*ENDS, chance.randrange(10**9)])
    names = ("customerRef", "resourceId", "causalityKey", "correlationId", "causationId", "source")
    texts = {name: text_by(chance) for name in names if chance.random() < 0.7}
    data = chance.choice([b"null", b'{"b": 1.10,\t"a":[1e400,"\\u00fc\\n"]}', b'"x"', b"12345678901234567890.50"])
    return {
        **texts, "tenantId": text_by(chance), "stream": text_by(chance), "ts": format_instant(instant),
        "quantity": chance.choice([None, "0", "-0.10", "1e3", "999999999999999999.999999999", "5.0"]),
        "data": msgspec.Raw(data), "op": chance.choice(["upsert", "delete"]),
        "idempotencyKey": chance.choice([None, text_by(chance) + str(chance.random())]),
    }  # fmt: skip


async def test_a_message_is_the_event_as_the_api_has_it_byte_for_byte(database: Database) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    async with sequencing(database) as sequencer:
        for _ in range(20):
            await record(sequencer, *(event_by(chance) for _ in range(20)))
        await record(sequencer, {}, {"ts": None})
        await sequencer.control({"type": "tick"})
    async with await database.connect() as connection:
        wanted = [msgspec.json.encode(event) for event in await read_events(connection, Slice(), limit=1_000)]
    assert len(wanted) > 300
    with reading(database, 1_000) as read:
        assert [message.value for message in read()] == wanted


def test_an_event_of_the_first_instant_is_not_given_the_current_time() -> None:
    (message,) = messages_of([(1, 1, 0, 999_999, 0, "s", None, None, b"{}")], {1: b""})
    assert message.timestamp == 1


@contextmanager
def reading(database: Database, rows_max: int, bytes_max: int = 1 << 20) -> Iterator[Any]:
    """Something that reads the next page."""
    with closing(LedgerPages(database, rows_max, bytes_max)) as source:
        last = 0

        def read() -> list[Message]:
            nonlocal last
            found = list(source.read(last).messages)
            last = found[-1].sequence if found else last
            return found

        read.source = source  # type: ignore[attr-defined]
        yield read


def sequences(found: list[Message]) -> list[int]:
    return [message.sequence for message in found]


async def test_pages_follow_one_another_and_find_what_came_after_the_query_began(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, *({} for _ in range(7)))
        with reading(database, 3) as read:
            assert sequences(read()) == [1, 2, 3]
            await record(sequencer, {}, {})
            assert [sequences(read()) for _ in range(4)] == [[4, 5, 6], [7], [8, 9], []]
            await record(sequencer, {})
            assert sequences(read()) == [10]


async def test_a_page_ends_at_its_bytes_but_has_one_event(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, {"data": "x" * 3_000}, *({"data": "y" * 300} for _ in range(4)))
    with reading(database, 1_000, 1_500) as read:
        assert [sequences(read()) for _ in range(4)] == [[1], [2, 3], [4, 5], []]


async def test_a_client_that_sends_slowly_leaves_the_query_and_its_locks_and_continues_where_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_queries = "SELECT count(*) FROM pg_locks WHERE relation = 'events'::regclass AND pid <> pg_backend_pid()"
    async with sequencing(database) as sequencer:
        await record(sequencer, *({"data": "x" * 1_000_000} for _ in range(20)))
    # More than sockets hold is still to come.
    monkeypatch.setattr(sources, "_CHUNK_ROWS", 2)
    with reading(database, 1_000, 2_500_000) as read:
        assert sequences(read()) == [1, 2]
        assert await rows(database, open_queries) != [(0,)], "the next pages are on their way"
        monkeypatch.setattr(sources, "_OPEN_S", 0.0)
        read.source.tend()
        assert await rows(database, open_queries) == [(0,)]
        assert sequences(read()) == [3, 4]
