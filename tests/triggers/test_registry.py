"""The registry: a receiver that is gone disables its trigger, unless the trigger is another by now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.recording import rows, sequencing
from tidelock.columns import BIGINT
from tidelock.errors import Exists, NotFound
from tidelock.postgres.database import Database
from tidelock.triggers import registry
from tidelock.triggers.definition import Deletion, Trigger, control_event, read_event

pytestmark = pytest.mark.check

TRIGGER = Trigger(
    "big", "t", "trades", '{"n": {"_gt": 1.50}}', unmatch=None, webhook="https://example.com/", columns={"n": BIGINT}
)


def test_what_a_control_event_says_comes_back() -> None:
    for said in (TRIGGER, replace(TRIGGER, unmatch="{}", enabled=False, snapshot=True), Deletion("big")):
        assert read_event(control_event(said)) == said


async def test_secrets_are_changed_of_the_trigger_that_was_meant_only(database: Database) -> None:
    """Its name may be another's by now, even another tenant's."""
    async with sequencing(database) as sequencer, await database.connect() as connection:
        made = await registry.create(sequencer, TRIGGER, ["whsec_x"])
        await registry.replace_secrets(connection, made, ["whsec_y"])
        assert await registry.read_secrets(connection, "big") == ("whsec_y",)
        assert await registry.delete(sequencer, made)
        await registry.create(sequencer, replace(TRIGGER, tenant_id="u"), ["whsec_z"])
        with pytest.raises(NotFound):
            await registry.replace_secrets(connection, made, ["whsec_mine"])
        assert await registry.read_secrets(connection, "big") == ("whsec_z",)


async def test_a_trigger_whose_receiver_is_gone_is_disabled_by_an_event(database: Database) -> None:
    async with sequencing(database) as sequencer, await database.connect() as connection:
        made = await registry.create(sequencer, TRIGGER, ["whsec_x"])
        assert await rows(database, "SELECT sequence FROM cursors WHERE name = 'triggers'") == [(0,)]
        with pytest.raises(Exists):
            await registry.create(sequencer, TRIGGER, ["whsec_y"])
        assert await registry.read_secrets(connection, "big") == ("whsec_x",)

        async def disabled(evaluated: int) -> tuple[int, Any]:
            await connection.execute("UPDATE cursors SET sequence = %s WHERE name = 'triggers'", (evaluated,))
            sequence = await registry.disable(connection, sequencer, "big")
            return sequence, (await registry.read(connection, "big", None)).trigger.enabled

        assert await disabled(0) == (1, True), "what was delivered by was another"
        assert await disabled(1) == (2, False)
        assert await disabled(2) == (2, False), "once is enough"
        known = await registry.read(connection, "big", "t")
        assert known.created_sequence == made.created_sequence
        assert await registry.change(sequencer, made, TRIGGER) is None, "it was read too long ago"
        assert await registry.delete(sequencer, known)
        assert await registry.disable(connection, sequencer, "big") == 0
        assert await rows(database, "SELECT count(*) FROM trigger_definitions") == [(0,)]
