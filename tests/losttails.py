"""Ledgers that have lost their tail, and somebody who accepts that."""

from __future__ import annotations

from pathlib import Path

from tidelock.ledger.anchor import Anchor
from tidelock.ledger.opening import open_ledger
from tidelock.postgres.database import Database
from tidelock.settings import Settings

_CUT = (
    "DELETE FROM events WHERE ingress_sequence > {0}",
    "DELETE FROM identities WHERE ingress_sequence > {0}",
    "DELETE FROM commits WHERE last_sequence > {0}",
    """UPDATE ledger_head SET (ingress_sequence, commit_id, digest, source_timestamp, skipped) = (
        SELECT coalesce(max(last_sequence), 0), coalesce(max(commit_id), 0),
            coalesce((array_agg(digest ORDER BY commit_id DESC))[1], decode(repeat('00', 32), 'hex')),
            coalesce(max(last_source_timestamp), 0), coalesce(max(skipped), 0)
        FROM commits)""",
)
#: what else is in the same database, and as old as the rest of it after a restore
_READERS = (
    "UPDATE cursors SET sequence = least(sequence, {0})",
    "DELETE FROM mirrored WHERE last_sequence > {0}",
)


async def anchored(database: Database, path: Path) -> None:
    """With the head in the file now."""
    await Anchor(database, path, 1).close()


def cut(database: Database, after: int, *, readers: bool = True) -> None:
    """Everything after a sequence is gone, as when an older state of the database comes back.

    `readers`: what they had written is gone as well; it always is, unless somebody works on single tables.
    """
    with database.connect_sync() as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in (*_CUT, *(_READERS if readers else ())):
            connection.execute(statement.format(after).encode())


async def accept(settings: Settings) -> int:
    """Start once with `--accept-lost-tail`; gives the sequence of what it recorded."""
    async with open_ledger(settings, streams_open=True, accept_lost_tail=True) as ledger:
        assert ledger.sequencer.head is not None, "it recorded something"
        return ledger.sequencer.head.ingress_sequence
