"""Listening: announcements are read from a connection whenever there are some, without waiting and without a thread."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

# Names of channels, as other versions know them.
#: commits; the payload is the head's sequence
LEDGER_CHANNEL = "tidelock_ledger"
#: what the fold did
FOLD_CHANNEL = "tidelock_fold"
#: the moments that the fold waits for have changed
DUE_CHANNEL = "tidelock_due"
#: a trigger has rows in the outbox; the payload is its id
OUTBOX_CHANNEL = "tidelock_outbox"
#: triggers were made, changed or removed
TRIGGERS_CHANNEL = "tidelock_triggers"
#: an API key was made or revoked
KEYS_CHANNEL = "tidelock_keys"


def listen_to(channels: Sequence[str]) -> sql.Composed:
    """The statements by which a connection listens."""
    return sql.SQL("; ").join(sql.SQL("LISTEN {}").format(sql.Identifier(channel)) for channel in channels)


class Listener:
    """What a connection hears, between its statements and during them.

    The connection may be used for statements as well, but not while another thread or task reads it here.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
        heard: Callable[[psycopg.Notify], None],
    ) -> None:
        self.fileno = connection.fileno()
        self._connection = connection
        self._heard = heard
        self._poll = select.poll()
        self._poll.register(self.fileno, select.POLLIN)
        # Whatever arrives together with the answer to a statement.
        connection.add_notify_handler(heard)

    @property
    def fit(self) -> bool:
        """Whether the connection can be used for another step."""
        info = self._connection.info
        return not self._connection.closed and info.transaction_status is TransactionStatus.IDLE

    def read(self) -> None:
        """Hear what has arrived; never waits. Raises psycopg.OperationalError when the connection is lost."""
        self._tell()
        while self._poll.poll(0):
            self._connection.pgconn.consume_input()
            self._tell()

    def wait(self, seconds: float) -> None:
        """Hear what arrives, for at most this time. Raises as `read` does."""
        if self._poll.poll(seconds * 1000):
            self.read()

    def _tell(self) -> None:
        # What was read with an answer is not in the socket any more.
        while (found := self._connection.pgconn.notifies()) is not None:
            encoding = self._connection.info.encoding
            self._heard(psycopg.Notify(found.relname.decode(encoding), found.extra.decode(encoding), found.be_pid))
