"""The running Spark: a session started without noise, stopped completely, and restarted when its JVM is gone."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, SQLContext

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.account import belong_to_parent, make_directory
from tidelock.postgres.filelocks import FileLock
from tidelock.settings.groups import SparkSettings
from tidelock.spark.configuration import cores, spark_conf, spark_environment
from tidelock.spark.java import java_home
from tidelock.spark.jvm import SUBMIT, Jvm, JvmKilled, environment
from tidelock.spark.packages import jdbc_driver
from tidelock.spark.workers import Environment, environments, failure, warm_workers

logger = logging.getLogger(__name__)

_DRIVER = "org.postgresql.Driver"
#: attempts if the JVM is killed while it starts
_STARTS_MAX = 4
# How long it may take to notice that a JVM was killed.
_GONE_S = 1.0
_STOPPED = (
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "stopped SparkContext",
    "Answer from Java side is empty",
    "Error while sending or receiving",
)


class Spark:
    """A session and its JVM. `restart()` it after `lost(error)`; `stop()` it at the end."""

    def __init__(self, settings: SparkSettings, data: Path, jars: Sequence[Path] = ()) -> None:
        """Start it, with further jars; takes seconds. Raises SettingsError and Unreachable."""
        self.settings = settings
        #: tasks that run at a time; None when only the cluster knows
        self.cores = cores(settings.master)
        self._home = java_home(settings.java, data)
        driver = jdbc_driver(data, SUBMIT, self._home, settings.conf, fetched=settings.jars)
        self._jars = [*([driver] if driver else []), *jars]
        self._directory = RunDirectory(data.absolute() / "spark")
        #: the PostgreSQL driver is available, so executors can read the ledger themselves
        self.jdbc = False
        self._workers_warm = False
        try:
            self._start()
        except BaseException:
            self._directory.remove()
            raise

    @property
    def parallelism(self) -> int:
        """Tasks that run at a time, as far as is known: executors of a cluster come and go."""
        return self.cores or self.session.sparkContext.defaultParallelism

    @property
    def pid(self) -> int:
        """The JVM's process."""
        return self._jvm.process.pid

    def alive(self) -> bool:
        if not self._jvm.alive:
            return False
        try:
            return not self._context._jsc.sc().isStopped()
        except (Py4JError, OSError, AttributeError):
            return False

    def lost(self, error: BaseException) -> bool:
        """Whether this error means that Spark is gone, so that only `restart()` helps."""
        if lost(error):
            return True
        # An Arrow reader, for example, only sees its stream end early.
        deadline = time.monotonic() + (_GONE_S if isinstance(error, OSError | EOFError | ValueError) else 0)
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_GONE_S / 20)
        return True

    def restart(self) -> None:
        """Replace the JVM and session."""
        self._end()
        self._start()

    def warm_workers(self) -> None:
        """Start Python workers for all tasks that run at a time, once for each JVM; takes a second or two.

        Raises SettingsError where executors lack what the workers need.
        """
        if self._workers_warm:
            return
        try:
            warm_workers(self.session, self.parallelism)
        except (Py4JError, PySparkException) as error:
            if told := failure(error):
                raise SettingsError(f"Spark on {self.settings.master}: {told}", field="spark.master") from error
            raise
        self._workers_warm = True

    def environments(self, patience_s: float) -> list[Environment]:
        """The Python environment on every host. Raises Unreachable if none answers in time."""
        late = threading.Timer(patience_s, self._context.cancelAllJobs)
        late.daemon = True
        late.start()
        try:
            return environments(self.session, self.parallelism)
        except (Py4JError, PySparkException) as error:
            # The timer has cancelled the job, which then failed.
            told = reason(error) if late.is_alive() else f"no executor responded within {patience_s:.0f} s"
            raise Unreachable(f"Spark on {self.settings.master}: {told}") from error
        finally:
            late.cancel()

    def stop(self) -> None:
        """Stop session and JVM; nothing of them remains in this process, on disk, or running."""
        self._end()
        self._directory.remove()

    def _start(self) -> None:
        """Start it; if the JVM is killed meanwhile, try again at once."""
        for _ in range(_STARTS_MAX - 1):
            with suppress(JvmKilled):
                return self._start_once()
        return self._start_once()

    def _start_once(self) -> None:
        self._workers_warm = False
        directory = self._directory.fresh()
        conf = spark_conf(self.settings, directory, self._jars)
        environ = spark_environment(self.settings, self._home, directory)
        self._jvm = Jvm(conf, environ, directory)
        try:
            with environment(environ), _own_interrupts(), _own_path():
                self._context = SparkContext(conf=_conf(conf), gateway=self._jvm.gateway)
            self.session = SparkSession(self._context)
            self.jdbc = has_jdbc(self.session)
        except (Py4JError, PySparkException, OSError) as error:
            told, killed = reason(error), not self._jvm.alive
            self._end()
            kind = JvmKilled if killed else Unreachable
            raise kind(f"Spark did not start on {self.settings.master}: {told}") from error
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        context = SparkContext._active_spark_context
        if context is not None:
            with warnings.catch_warnings(), suppress(Py4JError, OSError):
                # It warns that the JVM did not answer, which we know.
                warnings.simplefilter("ignore", RuntimeWarning)
                context.stop()
        self._jvm.close()
        # PySpark keeps these for the whole process; otherwise it would talk to the old JVM.
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkSession._instantiatedSession = None
        SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
        SparkFiles._sc = None

    def __enter__(self) -> Spark:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class RunDirectory:
    """Where a running Spark keeps its temporary files. The next start removes those of a killed process."""

    def __init__(self, above: Path) -> None:
        make_directory(above.parent)
        make_directory(above)
        belong_to_parent(above)
        self._above = above
        self._sweep()
        self.path = Path(tempfile.mkdtemp(dir=above, prefix="run-"))
        self._lock = FileLock(self.path.with_suffix(".lock"))
        self._lock.take()

    def fresh(self) -> Path:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)
        return self.path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.path.unlink(missing_ok=True)
        self._lock.release()

    def _sweep(self) -> None:
        for path in self._above.glob("run-*.lock"):
            left = FileLock(path)
            with suppress(OSError):
                if left.take():
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink(missing_ok=True)
                    left.release()


def lost(error: BaseException | None) -> bool:
    """Whether an error itself shows that the JVM or its context is gone."""
    while error is not None:
        if isinstance(error, Py4JNetworkError):
            return True
        if isinstance(error, Py4JError | PySparkException) and any(mark in str(error) for mark in _STOPPED):
            return True
        error = error.__cause__ or error.__context__
    return False


def has_jdbc(session: SparkSession) -> bool:
    """Whether the session can load the PostgreSQL driver."""
    jvm: Any = session.sparkContext._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(_DRIVER, False, True)
    except Py4JJavaError:
        return False
    return True


def _conf(values: Mapping[str, str]) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for name, value in values.items():
        conf.set(name, value)
    return conf


def reason(error: Exception) -> str:
    """An error's message, without its stack trace."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception).strip().splitlines()[0]
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep our Ctrl-C handler: PySpark's calls the JVM from the signal handler, over a connection in use."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _own_path() -> Iterator[None]:
    """Keep our import path: each start would add another temporary directory."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
