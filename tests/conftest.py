"""What every test may ask for: one real Postgres, Spark and Kafka per run, a fresh migrated database per test."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import random
import shutil
import ssl
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import httpx
import hypothesis
import psycopg
import pytest
from coverage import Coverage
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.budgets import HANG_S, examples
from tests.kept.opening import restore
from tests.serving import _deaf, client, server, start, tenant, threaded
from tests.stack import stack
from tidelock.mirror.broker import Broker, broker_jars
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.migrate import migrate
from tidelock.settings.groups import SparkSettings
from tidelock.sinks.kafkasource import kafka_jars
from tidelock.spark.java import java_home
from tidelock.spark.jvm import SUBMIT
from tidelock.spark.packages import jdbc_driver
from tidelock.spark.runtime import Spark

__all__ = ["_deaf", "client", "server", "stack", "start", "tenant", "threaded"]

Databases = Callable[[], AbstractContextManager[Database]]
Copies = Callable[[Database], AbstractContextManager[Database]]

_ROOT = Path(__file__).parent.parent
#: rooms whose tests are pure rules, or ask for nothing but Postgres; elsewhere a test or file says so itself
_CHECKED = ("definitions", "ingest", "ledger", "model", "postgres", "settings", "words")
#: fixtures that start a JVM, or fetch what one needs
_HEAVY = frozenset({"spark", "jars", "broker", "stack"})
# Java's second compiler pays off after minutes of the same steps. The tests run many different steps, each a few times,
# in many processes: without that compiler they need half the processor time. By default the code of the first one
# alone has too little room for Spark's.
os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
# The tests start hundreds of Pythons. Where none may keep what it compiled, each compiles everything again, which takes
# longer than most of them run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Five seconds, httpx's own limit, would bound the speed of a server. To read the certificates of the world takes longer
# than most tests ask for, and nobody shows one.
_no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
for _client in (httpx.Client, httpx.AsyncClient):
    vars(_client)["__init__"].__kwdefaults__ |= {"timeout": httpx.Timeout(HANG_S), "verify": _no_certificates}
# No deadline: it would bound the speed of an example, and another program on this machine would break it.
hypothesis.settings.register_profile("tidelock", deadline=None, max_examples=examples(50), print_blob=True)
hypothesis.settings.load_profile("tidelock")
_numbers = itertools.count(1)
_CI_SEED = 4242


class Files(LoadScopeScheduling):
    """A file's tests stay together, for what they share, and so do all tests of the full stack.

    Spark and the stack take long to start. So one worker begins with the stack, another with Spark, each goes on with
    what needs what it has, and only a worker with nothing else to do starts a second Spark. Two of them keep two cores
    busy: a worker that would start a third one ends instead.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return "stack" if _needs(path) == "stack" else path

    def _reschedule(self, node: WorkerController) -> None:
        only_spark = self.workqueue and all(map(_uses_spark, self.workqueue))
        if only_spark and not self._has_spark(node) and sum(map(self._has_spark, self.assigned_work)) >= 2:
            # It finishes what it was given.
            if not node.shutting_down:
                node.shutdown()
        else:
            super()._reschedule(node)

    def _has_spark(self, node: WorkerController) -> bool:
        """Whether it was given tests that start one; some of the stack's do."""
        work = self.assigned_work[node]
        return any(map(_uses_spark, work)) or any(_names_spark(test.split("::")[0]) for test in work.get("stack", ()))

    def _assign_work_unit(self, node: WorkerController) -> None:
        stacked = "stack" in self.assigned_work[node]
        others = [each for each, scopes in self.assigned_work.items() if any(map(_uses_spark, scopes))]
        spark_here = self._has_spark(node) or (not others and not stacked)

        def rank(scope: str) -> int:
            if scope == "stack":
                return 0
            if _uses_spark(scope):
                return 1 if spark_here else 4
            # What waits for processes is long: last of all it would keep one worker busy while the other is done.
            return 2 if scope.startswith(("tests/console", "tests/faults", "tests/mirror", "tests/packaging")) else 3

        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


def _uses_spark(scope: str) -> bool:
    return scope != "stack" and _needs(scope) == "spark"


@cache
def _needs(path: str) -> str | None:
    text = (_ROOT / path).read_text()
    return "stack" if "pytest.mark.stack" in text else "spark" if _names_spark(path) else None


@cache
def _names_spark(path: str) -> bool:
    return "spark: Spark" in (_ROOT / path).read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make check` imports nothing of what it leaves out."""
    if not config.option.markexpr.startswith("check"):
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return True if not any(map(_may_be_checked, files)) else None


def _may_be_checked(path: Path) -> bool:
    return path.suffix == ".py" and (_checked(path) or "pytest.mark.check" in path.read_text())


def _checked(path: Path) -> bool:
    return any(path.is_relative_to(_ROOT / "tests" / room) for room in _CHECKED)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected lives as long as the run: scanning it for garbage took a sixth of the tests' time.

    Afterwards the collector runs as seldom as in the server, see `tidelock/app.py`.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What `make check` runs, by room or because it says so itself: none of it may start more than Postgres."""
    heavy = []
    for item in items:
        if _checked(item.path):
            item.add_marker(pytest.mark.check)
        if item.get_closest_marker("check") and not item.get_closest_marker("soak"):
            heavy += [f"{item.nodeid} needs {name}" for name in _HEAVY.intersection(getattr(item, "fixturenames", ()))]
    if heavy:
        raise pytest.UsageError("make check starts nothing but Postgres:\n" + "\n".join(sorted(heavy)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Under `make coverage` every line knows the tests that ran it, by themselves or in a process that they started."""
    if (measuring := Coverage.current()) is not None:
        measuring.switch_context(item.nodeid)
        measuring.config.context = item.nodeid
        os.environ["COVERAGE_PROCESS_CONFIG"] = measuring.config.serialize()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Files(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """The embedded server, with one difference: it need not survive a power cut, so it does not wait for the disk.

    It lies in memory where there is room: a database per test is a copy of some 300 files, which takes 40 ms there
    and ten times as long on a disk.
    """
    with tempfile.TemporaryDirectory(prefix="tidelock-", dir=_memory()) as place:
        # The server may run as another user, who has to come through here.
        Path(place).chmod(0o755)
        data = Path(place) / "postgres"
        data.mkdir()
        server = EmbeddedPostgres(data, None, {"fsync": "off", "shared_buffers": "128MB"})
        server.ensure()
        yield server
        server.release()


def _memory() -> str | None:
    """A file system in memory with room for many databases."""
    place = Path("/dev/shm")
    return str(place) if place.is_dir() and shutil.disk_usage(place).free > 4 << 30 else None


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
def jars(pytestconfig: pytest.Config) -> Iterator[Path]:
    """A data directory with all jars in it: resolved by the first run, kept for the next ones.

    Tests copy it, so one worker fetches everything before any other goes on: a copy made meanwhile would be a part.
    """
    kept = Path(pytestconfig.cache.mkdir("tidelock"))
    with (kept / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert jdbc_driver(kept, SUBMIT, java_home(None, kept), {}) is not None
        kafka_jars(kept, SparkSettings())
        broker_jars(kept)
    # Only here: it imports Spark, which most tests have no use for.
    from tests import archives

    with archives.using(kept):
        yield kept


@pytest.fixture(scope="session")
def spark(jars: Path) -> Iterator[Spark]:
    """Spark as it is in production, on two cores and with less memory."""
    wanted = SparkSettings(master="local[2]", driver_memory=1 << 30)
    with Spark(wanted, jars, kafka_jars(jars, wanted)) as started:
        yield started


@pytest.fixture(scope="session")
def broker(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka that all tests share: each has a prefix of its own for its topics."""
    with Broker(tmp_path_factory.mktemp("kafka"), jars) as started:
        yield started


@pytest.fixture(scope="module")
def number() -> int:
    """Decides every ledger that a proof draws; `LAW_SEED` repeats one."""
    # In CI always the same ledgers: whether a change lands is not a matter of luck. Everywhere else new ones.
    usual = _CI_SEED if os.environ.get("CI") == "true" else random.randrange(10**6)
    found = int(os.environ.get("LAW_SEED", usual))
    print(f"LAW_SEED={found}")
    return found


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres, template: str) -> Databases:
    """What makes migrated databases, for tests that need several."""
    return lambda: _made(postgres, f"TEMPLATE {template} STRATEGY file_copy")


@pytest.fixture(scope="session")
def copies(postgres: EmbeddedPostgres) -> Copies:
    """What makes copies of a database that nobody is connected to, for tests that begin with the same tables."""
    return lambda copied: _made(postgres, f"TEMPLATE {copied.url.rsplit('/', 1)[1]} STRATEGY file_copy")


@pytest.fixture
def database(databases: Databases) -> Iterator[Database]:
    """A migrated database of this test's own."""
    with databases() as made:
        yield made


@pytest.fixture(scope="session")
def empty_databases(postgres: EmbeddedPostgres) -> Databases:
    """What makes databases with nothing in them."""
    return lambda: _made(postgres, "STRATEGY file_copy")


@pytest.fixture
def empty_database(empty_databases: Databases) -> Iterator[Database]:
    """A database of this test's own with nothing in it."""
    with empty_databases() as made:
        yield made


@pytest.fixture(scope="session")
def kept_template(postgres: EmbeddedPostgres) -> str:
    """The name of a database with the kept ledger in it, as it was written."""
    name = "tidelock_kept"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    restore(url_of(postgres, name))
    return name


@pytest.fixture(scope="session")
def kept_databases(postgres: EmbeddedPostgres, kept_template: str) -> Databases:
    """What makes copies of the kept ledger, which are not migrated."""
    return lambda: _made(postgres, f"TEMPLATE {kept_template} STRATEGY file_copy")


@pytest.fixture
def kept(kept_databases: Databases) -> Iterator[Database]:
    """A ledger that an earlier version wrote, of this test's own and not migrated: see `tests/kept/opening.py`."""
    with kept_databases() as made:
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
