"""However the outbox has grown and shrunk, and whatever Postgres believes of it: each question takes its own index."""

import re
from typing import Any

import pytest

from tests.triggers.outboxes import fill, transition
from tidelock.postgres.database import Database
from tidelock.triggers.pending import QUERIES

pytestmark = pytest.mark.check

ASKED: dict[str, dict[str, Any]] = {
    "read": {"trigger_ids": [1, 2], "after": [0, 0], "room": [64, 64], "shards": list(range(16)),
             "inline_bytes_max": 2048},
    "read_due": {"trigger_ids": [1, 2], "after": ["1970-01-01"] * 2, "after_ids": [0, 0], "room": [64, 64],
                 "shards": list(range(16)), "inline_bytes_max": 2048},
    "following": {"trigger_ids": [1, 1], "keys": ["1", "2"], "inline_bytes_max": 2048},
    "settle": {"settlements": '[{"id":1,"position":1,"status":"pending","failures":0,"outcome":"failed","seconds":0,'
                              '"sent_at_s":0,"response":""}]'},
}  # fmt: skip
INDEXES = {
    "read": ["outbox_trigger", "outbox_chain"],
    "read_due": ["outbox_due"],
    "following": ["outbox_chain"],
    "settle": ["outbox_pkey"],
}


def test_each_question_takes_its_own_index_in_every_state_of_the_outbox(database: Database) -> None:
    with database.connect_sync() as connection:
        connection.execute(QUERIES["session"])

        def plans() -> dict[str, list[str]]:
            found = {}
            for name, parameters in ASKED.items():
                lines = connection.execute(b"EXPLAIN " + QUERIES[name], parameters).fetchall()
                text = "\n".join(line for (line,) in lines)
                assert "Seq Scan" not in text, text
                assert "Sort" not in text, text
                found[name] = re.findall(r"using (\w+) on outbox", text)
            return found

        def grow(time: int) -> None:
            fill(database, [transition((trigger, "t"), key, time) for trigger in range(1, 6) for key in range(1000)])

        assert plans() == INDEXES, "empty"
        grow(1)
        assert plans() == INDEXES, "grown, and not counted"
        connection.execute("ANALYZE outbox")
        assert plans() == INDEXES, "counted"
        connection.execute("UPDATE outbox SET status = 'delivered', settled_at = now()")
        connection.execute("ANALYZE outbox")
        assert plans() == INDEXES, "all delivered"
        grow(2)
        assert plans() == INDEXES, "grown, when it was believed to have nothing pending"
        connection.execute("DELETE FROM outbox")
        connection.execute("VACUUM ANALYZE outbox")
        grow(3)
        assert plans() == INDEXES, "grown, when it was believed to be empty"
