"""Rows that match a trigger when it is made, however many they are."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from tests.model import Event
from tests.triggers.folded import begin_evaluation, hand_fold
from tests.triggers.outboxes import asked, fill, transition
from tidelock.columns import parse_column_type
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.triggers import outbox
from tidelock.triggers.definition import Trigger, control_event
from tidelock.triggers.evaluate import Evaluation
from tidelock.triggers.past import one_moment
from tidelock.triggers.replay import KeptPast, Replay

pytestmark = pytest.mark.check

COLUMNS = {"trade_id": "bigint", "qty": "int"}
TOML = {"streams": {"trades": {"key": "trade_id", "columns": COLUMNS}}}
ROWS = 6_000


@pytest.mark.parametrize("unmatch", [None, '{"qty": {"_lt": 0}}'], ids=["plain", "with unmatch"])
def test_a_snapshot_of_many_rows_is_told_in_the_order_of_keys_with_little_memory(
    database: Database, monkeypatch: pytest.MonkeyPatch, unmatch: str | None
) -> None:
    monkeypatch.setattr(outbox, "_ROWS", 500)
    columns = {name: parse_column_type(text) for name, text in COLUMNS.items()}
    trigger = Trigger(
        "all", "default", "trades", "{}", unmatch=unmatch, webhook="https://x.example/", snapshot=True, columns=columns
    )  # fmt: skip
    events = [
        Event(1, 10, "trades", 10, data='{"trade_id": 0, "qty": 1}'),
        Event(2, 20, CONTROL, 20, tenant_id=CONTROL, data=json.dumps(control_event(trigger))),
    ]
    begin_evaluation(database)
    with hand_fold(database, events, [1, 2], TOML) as fold:
        fold.fold(1)
        with database.connect_sync() as connection:
            connection.execute(
                'INSERT INTO tidelock_tables.trades (tenant_id, "$key", source_timestamp, trade_id, qty)'
                f" SELECT 'default', n::text, 10, n, 1 FROM generate_series(1, {ROWS - 1}) AS n".encode()
            )
        fold.fold(2)
    with database.connect_sync() as connection:
        reading = Evaluation(connection, database.connect_sync)
        assert reading.step()
        tracemalloc.start()
        try:
            while reading.step():
                pass
            assert tracemalloc.get_traced_memory()[1] < ROWS * 200
        finally:
            tracemalloc.stop()
        keys = [row[0] for row in asked(database, "SELECT key FROM told ORDER BY position")]
        assert keys == sorted(str(number) for number in range(ROWS))
        with one_moment(connection):
            replayed = Replay(connection, "all", 1, 2).transitions(connection, KeptPast(connection))
            assert [one.key for one in replayed] == keys
    members = asked(database, "SELECT count(*) FROM trigger_members")
    assert members == [(0 if unmatch is None else ROWS,)]


def test_large_rows_are_appended_a_few_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres takes no statement of more than a GiB."""
    monkeypatch.setattr(outbox, "_BYTES", 100_000)
    sizes: list[int] = []
    encoded = outbox._encoded

    def counted(batch: list[outbox.Transition]) -> str:
        sizes.append(len(batch))
        return encoded(batch)

    monkeypatch.setattr(outbox, "_encoded", counted)
    assert fill(database, [transition((1, "big"), key, 1, size=40_000) for key in range(7)]) == 7
    assert sizes == [3, 3, 1]
