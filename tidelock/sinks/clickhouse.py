"""ClickHouse: the ledger as one table, through clickhouse-connect to a server or to chDB, which is embedded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.account import belong_to_parent
from tidelock.settings.groups import ClickHouseSettings
from tidelock.sinks.columns import COLUMNS, LATER, NAMES, SEQUENCE, conformed
from tidelock.sinks.source import EventSource

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_PORTS = {"clickhouse": 8123, "clickhouses": 8443}
_PAUSE_S = 0.2
_ORDER = "ingress_sequence, kafka_partition, kafka_offset"
_STRAY = f"{SEQUENCE} < 1"
#: query IDs of inserts, so that one that outlives its client is found
_QUERY_ID = "tidelock-load"
# Inserted rows must survive a power cut before the cursor moves.
_CREATE = f"""\
CREATE TABLE IF NOT EXISTS events ({", ".join(f"{column.name} {column.clickhouse}" for column in COLUMNS)})
ENGINE = MergeTree ORDER BY ({_ORDER}) SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"""

_LATER = [column for column in COLUMNS if column.name in LATER]
# A table of the first form gets what it lacks, null in its rows; asking costs nothing where there is nothing to add.
_WIDEN = f"ALTER TABLE events {', '.join(f'ADD COLUMN IF NOT EXISTS {each.name} {each.clickhouse}' for each in _LATER)}"


def connection_of(url: str) -> dict[str, Any]:
    """The parameters of clickhouse-connect. Raises SettingsError."""
    if url.startswith("chdb:"):
        path = url.removeprefix("chdb:").removeprefix("//")
        if not path:
            raise SettingsError("`clickhouse.url` has no path: write chdb:PATH", field="clickhouse.url")
        return {"interface": "chdb", "path": str(Path(path).expanduser().absolute())}
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise SettingsError(
            "`clickhouse.url` must be clickhouse://user:password@host:8123/database or chdb:PATH",
            field="clickhouse.url",
        )
    return dict(parse_qsl(parts.query)) | {
        "host": parts.hostname,
        "port": port or _PORTS[parts.scheme],
        "username": unquote(parts.username or "default"),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.strip("/")) or "default",
        "secure": parts.scheme == "clickhouses",
    }


class ClickHouseStore:
    """A ClickHouse by its URL. A connection is kept for one piece of work only: chDB lets one process in at a time."""

    name = "clickhouse"

    def __init__(self, settings: ClickHouseSettings) -> None:
        assert settings.url is not None
        self._connection = connection_of(settings.url)
        self.timeout_s = settings.timeout_s
        self.embedded = "interface" in self._connection
        self.place = str(self._connection["path"] if self.embedded else f"{self._connection['host']}")
        _require()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Raises Unreachable, now and whenever it stops responding."""
        from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

        client = self._connected()
        try:
            yield client
        except OperationalError as error:
            raise Unreachable(f"ClickHouse at {self.place} does not respond: {_first_line(error)}") from None
        except DatabaseError as error:
            # A table of another shape, a full disk, no permission: somebody may fix it while we wait.
            raise Unreachable(f"ClickHouse at {self.place} returned an error: {_first_line(error)}") from None
        finally:
            client.close()

    def create(self) -> None:
        """Create the table if it is missing."""
        if self.embedded:
            path = Path(self._connection["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.client() as client:
            client.command(_CREATE)
            client.command(_WIDEN)
        if self.embedded:
            belong_to_parent(path)

    def rows(self, lo: int, hi: int) -> pa.Table:
        """The events of a range in the table's order."""
        with self.client() as client:
            found = client.query_arrow(
                f"SELECT * FROM events WHERE {_within(lo, hi)} ORDER BY {_ORDER}", use_strings=True
            )
        return conformed(found)

    def last(self) -> tuple[int, int] | None:
        """Sequence and commit of the last event; None: there is no event, or no table."""
        with self.client() as client:
            if not client.command("EXISTS TABLE events"):
                return None
            rows = client.query(
                f"SELECT {SEQUENCE}, commit_id FROM events ORDER BY {SEQUENCE} DESC LIMIT 1"
            ).result_rows
        return (int(rows[0][0]), int(rows[0][1])) if rows else None

    def strays(self) -> list[str]:
        """Rows below the first sequence, which no repair covers."""
        with self.client() as client:
            if not client.command("EXISTS TABLE events"):
                return []
            found = int(client.query(f"SELECT count() FROM events WHERE {_STRAY}").result_rows[0][0])
        return [f"{found:,} of its rows are below sequence 1; `DELETE FROM events WHERE {_STRAY}`"] if found else []

    def _connected(self) -> Client:
        import clickhouse_connect
        from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError

        options: dict[str, Any] = {} if self.embedded else {"connect_timeout": max(1, round(self.timeout_s))}
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return clickhouse_connect.get_client(**self._connection, **options)
            except ProgrammingError as error:
                if not self.embedded:
                    raise SettingsError(f"`clickhouse.url`: {_first_line(error)}", field="clickhouse.url") from None
                if time.monotonic() > deadline:
                    said = (
                        f"chDB cannot be opened at {self.place}; only one process may open it at a time, so "
                        "another may have it open"
                    )
                    raise Unreachable(f"{said}: {_first_line(error)}") from None
            except (OperationalError, DatabaseError) as error:
                raise Unreachable(f"ClickHouse at {self.place} does not respond: {_first_line(error)}") from None
            time.sleep(_PAUSE_S)


@dataclass(frozen=True, slots=True)
class _StagedRows:
    """Rows of a range, ready to be inserted."""

    store: ClickHouseStore
    lo: int
    hi: int
    rows: pa.Table
    #: existing rows of the range must not be trusted
    anew: bool = False

    def publish(self) -> None:
        """Existing rows came from a step that was killed during or after its insert: they are whole and correct,
        because both come from the ledger, so inserting the missing ones completes the range.
        """
        with self.store.client() as client:
            if not self.store.embedded:
                self._await_others(client)
            if self.anew:
                client.command(f"DELETE FROM events WHERE {_within(self.lo, self.hi)}", settings={"mutations_sync": 2})
            there = client.query_arrow(f"SELECT {SEQUENCE} FROM events WHERE {_within(self.lo, self.hi)}")[SEQUENCE]
            missing = self.rows.filter(pc.invert(pc.is_in(self.rows[SEQUENCE], value_set=there.cast(pa.int64()))))
            if missing.num_rows:
                client.insert_arrow("events", missing, settings=self._named())

    def _named(self) -> dict[str, Any]:
        return {} if self.store.embedded else {"query_id": f"{_QUERY_ID}-{self.lo}-{time.time_ns()}"}

    def _await_others(self, client: Client) -> None:
        """An insert may go on in the server for a moment after the loader that sent it was killed."""
        running = f"SELECT count() FROM system.processes WHERE query_id LIKE '{_QUERY_ID}-%'"
        deadline = time.monotonic() + self.store.timeout_s
        while int(client.query(running).result_rows[0][0]):
            if time.monotonic() > deadline:
                raise Unreachable(f"ClickHouse at {self.store.place} is still running an insert of another loader")
            time.sleep(_PAUSE_S)


class ClickHouseSink:
    """The table `events`."""

    name = "clickhouse"
    replaces = False

    def __init__(self, settings: ClickHouseSettings) -> None:
        self.store = ClickHouseStore(settings)

    def open(self) -> None:
        self.store.create()

    def last(self) -> int | None:
        found = self.store.last()
        return 0 if found is None else found[0]

    def stage(self, lo: int, hi: int, source: EventSource) -> _StagedRows:
        return _StagedRows(self.store, lo, hi, conformed(source.read([(lo, hi)]).select(*NAMES).toArrow()))

    def widened(self, lo: int, hi: int) -> tuple[int, int]:
        return lo, hi

    def stage_repair(self, lo: int, hi: int, source: EventSource) -> _StagedRows:
        return _StagedRows(self.store, lo, hi, conformed(source.read([(lo, hi)]).select(*NAMES).toArrow()), anew=True)


def _within(lo: int, hi: int) -> str:
    return f"{SEQUENCE} > {lo} AND {SEQUENCE} <= {hi}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _require() -> None:
    try:
        import clickhouse_connect  # noqa: F401
    except ImportError:
        raise SettingsError(
            "loading ClickHouse needs the extra `clickhouse`: pip install 'tidelock[clickhouse]'",
            field="clickhouse.url",
        ) from None
