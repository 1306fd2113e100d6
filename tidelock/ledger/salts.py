"""Salts: the secrets that derive idempotency keys, kept in the database so that every process derives the same keys.

Rotation has two steps. `add` makes a new salt known, so that every process recognises keys derived from it; `promote`
makes it the deriving one. Both advance a version in the head row, which each commit reads under its lock: after the
change no process derives with an old list, restarted or not.
"""

from __future__ import annotations

import secrets
from typing import Any

import psycopg

from tidelock.errors import SettingsError
from tidelock.ingest.identity import Salts
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/salts.sql")

SALT_BYTES_MAX = 1024


async def open_salts(connection: psycopg.AsyncConnection[Any], configured: str | None) -> Salts:
    """The recorded salts; records the configured one, or a new one, in an installation that has none yet.

    Before anything is recorded no key has been derived, so a salt configured until then replaces the generated one.
    """
    async with connection.transaction():
        head = await (await connection.execute(QUERIES["lock_salts"])).fetchone()
        salts = await read_salts(connection)
        query = None
        if not salts.salts:
            query = "insert_salt"
        elif configured is not None and configured not in salts.salts and head == (0,):
            query = "replace_salt"
        if query is not None:
            await connection.execute(QUERIES[query], [_checked(configured or secrets.token_urlsafe(32))])
            await connection.execute(QUERIES["next_version"])
            salts = await read_salts(connection)
    if configured is not None and configured not in salts.salts:
        raise SettingsError(
            "the configured salt is not recorded in this ledger, so retries would be recorded twice; configure the "
            "old salt, or rotate with `tidelock salts add` and then `tidelock salts promote`",
            field="salt",
        )
    return salts


async def read_salts(connection: psycopg.AsyncConnection[Any]) -> Salts:
    found = await (await connection.execute(QUERIES["read_salts"])).fetchall()
    version = await (await connection.execute(QUERIES["read_version"])).fetchone()
    assert version is not None, "ledger_head always has its one row"
    return Salts(tuple(salt for (salt,) in found), version[0])


async def add_salt(connection: psycopg.AsyncConnection[Any], salt: str | None) -> Salts:
    """Step one: make a salt known, after the others. It derives nothing yet."""
    async with connection.transaction():
        await connection.execute(QUERIES["lock_salts"])
        salts = await read_salts(connection)
        if salt in salts.salts:
            raise SettingsError("this salt is already known; promote it once every process knows it", field="salt")
        await connection.execute(QUERIES["insert_salt"], [_checked(salt or secrets.token_urlsafe(32))])
        await connection.execute(QUERIES["next_version"])
        return await read_salts(connection)


async def promote_salt(connection: psycopg.AsyncConnection[Any], position: int) -> Salts:
    """Step two: let a known salt derive. The previous one stays known for ever."""
    async with connection.transaction():
        await connection.execute(QUERIES["lock_salts"])
        salts = await read_salts(connection)
        if not 0 <= position < len(salts.salts):
            raise SettingsError(
                f"there is no salt {position}; available: 0 to {len(salts.salts) - 1}", field="position"
            )
        await connection.execute(QUERIES["lift_salts"])
        await connection.execute(QUERIES["order_salts"], [position])
        await connection.execute(QUERIES["next_version"])
        return await read_salts(connection)


def _checked(salt: str) -> str:
    if not salt or "\0" in salt or len(salt.encode()) > SALT_BYTES_MAX:
        raise SettingsError(f"a salt is a string of 1 to {SALT_BYTES_MAX} bytes", field="salt")
    return salt
