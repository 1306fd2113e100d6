"""Control events and what is written beside them: both, or neither."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.recording import rows, sequencing
from tidelock.errors import Exists
from tidelock.model import Head
from tidelock.postgres.database import Database


async def test_what_belongs_to_a_control_event_is_written_with_it_or_neither_is(database: Database) -> None:
    async def beside(connection: psycopg.AsyncConnection[Any], head: Head) -> None:
        sequence = head.ingress_sequence
        await connection.execute("INSERT INTO cursors VALUES (%s, %s)", (f"mine {sequence}", sequence))

    async def refused(connection: psycopg.AsyncConnection[Any], head: Head) -> None:
        await beside(connection, head)
        raise Exists("it is there already")

    async with sequencing(database) as sequencer:
        accepted = await sequencer.control({"type": "trigger"}, beside)
        assert await rows(database, "SELECT sequence FROM cursors") == [(accepted.ingress_sequence,)]
        with pytest.raises(Exists):
            await sequencer.control({"type": "trigger"}, refused)
        assert await rows(database, "SELECT count(*) FROM events") == [(1,)]
        assert (await sequencer.control({"type": "tick"})).ingress_sequence == 2
