"""A foreign Postgres, or a server with its protocol: its address, and why it refuses a connection."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.reconnect import Away

# SQLSTATE of a login that will be refused again: wrong password, wrong user, no such database, not allowed from here.
_REFUSED = ("28000", "28P01", "3D000", "42501")
_REFUSED_TEXTS = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "no password supplied",
    "invalid password",
)
# Dead peers are found in about a minute.
_TRANSPORT = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class Address(NamedTuple):
    """The address of a foreign server."""

    #: for people: without the password
    place: str
    parameters: dict[str, Any]

    def refusal(self, error: psycopg.Error) -> SettingsError | Unreachable:
        """Why a connection failed: wrong settings, or an unreachable server."""
        told = " ".join(str(error).split())
        if password := str(self.parameters.get("password") or ""):
            told = told.replace(password, "***")
        if error.sqlstate in _REFUSED or any(text in told for text in _REFUSED_TEXTS):
            return SettingsError(f"--from: {self.place} rejects this login; check user, password and database: {told}")
        kind = Away if "closed the connection" in told or "terminating connection" in told else Unreachable
        return kind(f"--from: {self.place} cannot be reached: {told}")


def address(url: str, what: str, name: str, timeout_s: float) -> Address:
    """The address in a URL. Raises SettingsError."""
    try:
        known = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The vendor's message quotes the text, and with it the password.
        looks = "postgresql://user:password@host:5432/name"
        raise SettingsError(f"--from is not a URL of a {what}; it should look like {looks}") from None
    place = f"{known.get('host') or 'localhost'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
    parameters: dict[str, Any] = {**_TRANSPORT, "connect_timeout": max(1, round(timeout_s)), **known}
    return Address(place, parameters | {"application_name": name, "client_encoding": "UTF8"})
