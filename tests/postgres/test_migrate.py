"""Migrations: applied once, in order, never changed; together they are the schema."""

from __future__ import annotations

import subprocess
import threading
from importlib.resources import files
from pathlib import Path

import pytest

from tidelock.errors import SettingsError, TidelockError
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import find_binaries
from tidelock.postgres.migrate import migrate, status
from tidelock.tables import SCHEMA


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE a (x int);\nINSERT INTO a VALUES (1);\n")
    (tmp_path / "0002_second.sql").write_text("ALTER TABLE a ADD COLUMN y text DEFAULT '100%';\n")
    return tmp_path


def test_the_schema_is_what_the_migrations_make(database: Database, empty_database: Database) -> None:
    with empty_database.connect_sync() as connection:
        connection.execute(files("tidelock.postgres").joinpath("schema.sql").read_bytes())
    assert _dump(empty_database) == _dump(database)


def test_the_ledger_is_found_whatever_the_tables_of_streams_are_called(database: Database) -> None:
    with database.connect_sync() as connection:
        connection.execute(f"CREATE TABLE {SCHEMA}.events ()")
        assert migrate(connection) == []
        assert connection.execute("SELECT count(ingress_sequence) FROM events").fetchone() == (0,)


def test_missing_migrations_are_applied_in_order_and_only_once(empty_database: Database, toys: Path) -> None:
    with empty_database.connect_sync() as connection:
        assert migrate(connection, toys) == ["0001_first", "0002_second"]
        assert migrate(connection, toys) == []
        assert connection.execute("SELECT x, y FROM a").fetchall() == [(1, "100%")]
        (toys / "0003_third.sql").write_text("DROP TABLE a")
        assert migrate(connection, toys) == ["0003_third"]


def test_status_shows_what_is_applied_and_what_is_missing(empty_database: Database, toys: Path) -> None:
    with empty_database.connect_sync() as connection:
        assert [s.state for s in status(connection, toys)] == ["missing", "missing"]
        migrate(connection, toys)
        (toys / "0003_third.sql").write_text("SELECT 1")
        known = status(connection, toys)
    assert [(s.title, s.state) for s in known] == [
        ("0001_first", "applied"),
        ("0002_second", "applied"),
        ("0003_third", "missing"),
    ]
    assert known[0].applied_at is not None
    assert known[2].applied_at is None


def test_a_changed_text_is_refused(empty_database: Database, toys: Path) -> None:
    with empty_database.connect_sync() as connection:
        migrate(connection, toys)
        (toys / "0001_first.sql").write_text("CREATE TABLE a (x bigint)")
        (toys / "0003_third.sql").write_text("CREATE TABLE b ()")
        with pytest.raises(SettingsError, match="0001_first differs from what was applied"):
            migrate(connection, toys)
        assert connection.execute("SELECT to_regclass('b')").fetchone() == (None,)


def test_other_line_ends_are_no_change(empty_database: Database, toys: Path) -> None:
    with empty_database.connect_sync() as connection:
        migrate(connection, toys)
        first = toys / "0001_first.sql"
        first.write_bytes(first.read_bytes().replace(b"\n", b"\r\n"))
        assert migrate(connection, toys) == []


def test_a_database_newer_than_the_code_is_refused(empty_database: Database, toys: Path) -> None:
    with empty_database.connect_sync() as connection:
        migrate(connection, toys)
        (toys / "0002_second.sql").unlink()
        with pytest.raises(SettingsError, match=r"newer than this Tidelock.*0002_second"):
            migrate(connection, toys)
        assert [s.state for s in status(connection, toys)] == ["applied", "unknown"]


def test_a_failing_migration_leaves_no_trace_and_can_be_repeated(empty_database: Database, toys: Path) -> None:
    (toys / "0002_second.sql").write_text("CREATE TABLE b ();\nSELECT 1 / 0;")
    with empty_database.connect_sync() as connection:
        with pytest.raises(TidelockError, match=r"Migration 0002_second failed.*division by zero"):
            migrate(connection, toys)
        assert connection.execute("SELECT to_regclass('b')").fetchone() == (None,)
        (toys / "0002_second.sql").write_text("CREATE TABLE b ();")
        assert migrate(connection, toys) == ["0002_second"]


def test_a_table_of_somebody_that_has_the_name_of_a_built_in_one_is_not_touched(
    empty_database: Database, tmp_path: Path
) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    for file in files("tidelock.postgres").joinpath("migrations").iterdir():
        if file.name < "0012":
            (earlier / file.name).write_bytes(file.read_bytes())
    with empty_database.connect_sync() as connection:
        migrate(connection, earlier)
        connection.execute(f"CREATE TABLE {SCHEMA}.statements (mine int)")
        with pytest.raises(
            SettingsError, match=r'0012_closing was rolled back: .*"statements" already exists.*rename it'
        ):
            migrate(connection)
        assert connection.execute(f"SELECT mine FROM {SCHEMA}.statements").fetchall() == []
        assert [known.state for known in status(connection)][10:12] == ["applied", "missing"]
        connection.execute(f"ALTER TABLE {SCHEMA}.statements RENAME TO bank_statements")
        assert "0012_closing" in migrate(connection)


def test_processes_that_migrate_at_once_apply_each_one_once(empty_database: Database, toys: Path) -> None:
    (toys / "0003_third.sql").write_text("SELECT pg_sleep(0.2)")
    applied: list[str] = []

    def run() -> None:
        with empty_database.connect_sync() as connection:
            applied.extend(migrate(connection, toys))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(applied) == ["0001_first", "0002_second", "0003_third"]


@pytest.mark.parametrize(
    ("name", "complaint"), [("0002_again.sql", "have the same number"), ("2_x.sql", "is not of the form")]
)
def test_a_misnamed_file_is_refused(empty_database: Database, toys: Path, name: str, complaint: str) -> None:
    (toys / name).write_text("SELECT 1")
    with empty_database.connect_sync() as connection, pytest.raises(ValueError, match=complaint):
        migrate(connection, toys)


def _dump(database: Database) -> list[str]:
    """The database as Postgres itself writes it down, first rows included, without the record of migrations."""
    flags = ["--no-owner", "--exclude-table=migrations", f"--dbname={database.url}"]
    dump = subprocess.run([find_binaries(None) / "pg_dump", *flags], capture_output=True, text=True, check=True)
    # \restrict and \unrestrict carry a random word.
    return [line for line in dump.stdout.splitlines() if line and not line.startswith(("--", "\\"))]
