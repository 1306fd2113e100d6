"""API keys: who may write and read, for which tenant. Only a key's hash is stored; its text is shown once.

A server is notified when a key is created or revoked, so that its cache is valid until then.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import psycopg

from tidelock.errors import SettingsError
from tidelock.model import CONTROL
from tidelock.postgres.course import IDLE, Turn
from tidelock.postgres.database import Database
from tidelock.postgres.listener import KEYS_CHANNEL
from tidelock.postgres.loop import AsyncReaderLoop
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/apikeys.sql")

SCOPES = ("ingest", "read", "triggers", "admin")

_PREFIX = "tdl_"
_NAME_LENGTH_MAX = 255

# A notification may be lost (a connection that only looks alive, a pooler), so check this often anyway.
_POLL_S = 1.0
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as listed: everything but the key itself."""

    id: str
    #: `*`: every tenant
    tenant_id: str
    scopes: tuple[str, ...]
    #: None: any stream
    streams: tuple[str, ...] | None
    label: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Holder:
    """What the holder of a valid key may do."""

    id: str
    tenant_id: str
    scopes: frozenset[str]
    streams: frozenset[str] | None


async def create_key(
    connection: psycopg.AsyncConnection[Any],
    tenant_id: str,
    scopes: Collection[str],
    streams: Collection[str] | None = None,
    label: str = "",
) -> tuple[str, str]:
    """A new key: its ID, by which it is revoked, and its text, which cannot be retrieved later."""
    _check(tenant_id, scopes, streams, label)
    key_id = f"key_{secrets.token_hex(6)}"
    key = _PREFIX + secrets.token_urlsafe(32)
    # In the order of SCOPES, however they were given.
    ordered = [scope for scope in SCOPES if scope in scopes]
    named = None if streams is None else sorted(set(streams))
    await connection.execute(QUERIES["insert_key"], [key_id, hash_key(key.encode()), tenant_id, ordered, named, label])
    return key_id, key


async def list_keys(connection: psycopg.AsyncConnection[Any]) -> list[ApiKey]:
    """Every key ever created, including revoked ones."""
    found = await (await connection.execute(QUERIES["list_keys"])).fetchall()
    return [
        ApiKey(
            id=key_id,
            tenant_id=tenant_id,
            scopes=tuple(scopes),
            streams=None if streams is None else tuple(streams),
            label=label,
            created_at=created,
            revoked_at=revoked,
        )
        for key_id, tenant_id, scopes, streams, label, created, revoked in found
    ]


async def revoke_key(connection: psycopg.AsyncConnection[Any], key_id: str) -> bool:
    """Revoke a key. False if there is no such key or it was already revoked."""
    return (await connection.execute(QUERIES["revoke_key"], [key_id])).rowcount == 1


async def keys_exist(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether requests need a key: once any key was created, even if it is revoked."""
    row = await (await connection.execute(QUERIES["keys_exist"])).fetchone()
    return row is not None and bool(row[0])


async def find_key(connection: psycopg.AsyncConnection[Any], key_hash: bytes) -> Holder | None:
    """The holder of the key with this hash, unless it was revoked."""
    row = await (await connection.execute(QUERIES["find_key"], [key_hash])).fetchone()
    if row is None:
        return None
    key_id, tenant_id, scopes, streams = row
    return Holder(key_id, tenant_id, frozenset(scopes), None if streams is None else frozenset(streams))


def hash_key(key: bytes) -> bytes:
    """A key has 256 random bits, so one round of SHA-256 cannot be reversed by guessing."""
    return sha256(key).digest()


class KeyNews:
    """Listens for created and revoked keys as long as the server runs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: called when keys have changed, or may have
        self.on_change: list[Callable[[], None]] = []
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._heard: tuple[Any, ...] | None = None
        self._live_until = 0.0

    @property
    def live(self) -> bool:
        """Whether changes are announced. If not, only the database knows."""
        return time.monotonic() < self._live_until

    async def run(self) -> None:
        await AsyncReaderLoop(
            self._turn, what="news of API keys", database=self._database, name="tidelock keys",
            channels=[KEYS_CHANNEL], opened=self._open, heard=self._hear, failed=self._deaf, poll_s=_POLL_S,
            pause_max_s=_POLL_S,
        ).run()  # fmt: skip

    async def _open(self, connection: psycopg.AsyncConnection[Any]) -> None:
        # Changes before it listened were missed.
        self._connection, self._heard = connection, None

    async def _turn(self) -> Turn:
        assert self._connection is not None
        asked = time.monotonic()
        async with asyncio.timeout(_ANSWER_S):
            found = await (await self._connection.execute(QUERIES["count_keys"])).fetchone()
        if found != self._heard:
            self._heard = found
            self._tell()
        self._live_until = asked + _POLL_S + _ANSWER_S
        return IDLE

    def _hear(self, _: psycopg.Notify) -> bool:
        self._tell()
        return False

    def _deaf(self, _: Exception) -> None:
        self._live_until = 0.0
        self._tell()

    def _tell(self) -> None:
        for listener in self.on_change:
            listener()


def _check(tenant_id: str, scopes: Collection[str], streams: Collection[str] | None, label: str) -> None:
    if not _is_name(tenant_id) or tenant_id == CONTROL:
        raise SettingsError(
            f"a tenant is a string of 1 to {_NAME_LENGTH_MAX} characters, not {CONTROL}; * means every tenant",
            field="tenant",
        )
    if not scopes:
        raise SettingsError(f"a key needs at least one scope of {', '.join(SCOPES)}", field="scopes")
    for scope in scopes:
        if scope not in SCOPES:
            raise SettingsError(f"there is no scope {scope!r}; available: {', '.join(SCOPES)}", field="scopes")
    if streams is not None and (not streams or not all(_is_name(each) and each != CONTROL for each in streams)):
        raise SettingsError(f"streams are names, not {CONTROL}; omit them to allow every stream", field="streams")
    if "\0" in label:
        raise SettingsError("a label cannot contain NUL", field="label")


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= _NAME_LENGTH_MAX and "\0" not in name
