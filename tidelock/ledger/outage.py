"""An outage: the database, reached before, goes away or turns out to hold no ledger. Told in words, not as a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tidelock.errors import SettingsError, Unreachable


@contextmanager
def outage(doing: str) -> Iterator[None]:
    """Translate what the driver raises while `doing` something into the project's own error."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise Unreachable(f"{doing}: this database holds no ledger; `tidelock migrate` makes one") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SettingsError(
            f"{doing}: the database user may not do this ({reason(error)}); it must own the schema",
            field="database_url",
        ) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise Unreachable(f"{doing}: the database went away ({reason(error)}); try again") from error


def reason(error: psycopg.Error) -> str:
    """What the database said, in one line."""
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
