"""What every test may ask for: one real Postgres, Spark and Kafka per run, a fresh migrated database per test."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import psycopg
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tidelock import settings
from tidelock.fold.jars import jdbc_driver
from tidelock.fold.java import java_home
from tidelock.fold.jvm import SUBMIT
from tidelock.fold.session import Spark
from tidelock.ledger.database import Database
from tidelock.ledger.migrate import migrate
from tidelock.ledger.postgres import EmbeddedPostgres
from tidelock.mirror.broker import Broker
from tidelock.sinks.kafkasource import kafka_jars

Databases = Callable[[], AbstractContextManager[Database]]

_ROOT = Path(__file__).parent.parent
# Rehearsals would only take time from the tests that run meanwhile; every server that a test starts reads this.
os.environ["TIDELOCK_SPARK_REHEARSALS"] = "0"
_numbers = itertools.count(1)


class Files(LoadScopeScheduling):
    """A file's tests stay together, for what they share, and so do files that need Spark, which takes long to start."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return "spark" if _needs_spark(path) else path


@cache
def _needs_spark(path: str) -> bool:
    return "spark: Spark" in (_ROOT / path).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Files(config, log)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """The embedded server, with one difference: it need not survive a power cut, so it does not wait for the disk."""
    data = tmp_path_factory.mktemp("postgres")
    server = EmbeddedPostgres(data, None, {"fsync": "off", "shared_buffers": "128MB"})
    server.ensure()
    yield server
    server.release()
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres) -> str:
    """The name of a migrated database to copy from: a copy takes a fraction of migrating anew."""
    name = "tidelock_template"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with Database(url_of(postgres, name)).connect_sync() as connection:
        migrate(connection)
    return name


@pytest.fixture(scope="session")
def jars(pytestconfig: pytest.Config) -> Path:
    """A data directory with the jars in it: resolved by the first run, kept for the next ones."""
    kept = Path(pytestconfig.cache.mkdir("tidelock"))
    assert jdbc_driver(kept, SUBMIT, java_home(None, kept), {}) is not None
    return kept


@pytest.fixture(scope="session")
def spark(jars: Path) -> Iterator[Spark]:
    """Spark as it is in production, on two cores and with less memory."""
    wanted = settings.Spark(master="local[2]", driver_memory=1 << 30, rehearsals=0)
    with Spark(wanted, jars, kafka_jars(jars, wanted)) as started:
        yield started


@pytest.fixture(scope="session")
def broker(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka that all tests share: each has a prefix of its own for its topics."""
    with Broker(tmp_path_factory.mktemp("kafka"), jars) as started:
        yield started


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres, template: str) -> Databases:
    """What makes migrated databases, for tests that need several."""
    return lambda: _made(postgres, f"TEMPLATE {template} STRATEGY file_copy")


@pytest.fixture
def database(databases: Databases) -> Iterator[Database]:
    """A migrated database of this test's own."""
    with databases() as made:
        yield made


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database of this test's own with nothing in it."""
    with _made(postgres, "STRATEGY file_copy") as made:
        yield made


def url_of(postgres: EmbeddedPostgres, name: str) -> str:
    return postgres.url.rsplit("/", 1)[0] + f"/{name}"


@contextmanager
def _made(postgres: EmbeddedPostgres, options: str) -> Iterator[Database]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {options}")
    try:
        yield Database(url_of(postgres, name))
    finally:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
