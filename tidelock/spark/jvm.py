"""The JVM of Spark's driver: launched so that it survives signals meant for us, but never outlives us."""

from __future__ import annotations

import logging
import os
import re
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pyspark
from py4j.protocol import Py4JError
from pyspark.java_gateway import launch_gateway

from tidelock.errors import SettingsError, Unreachable

logger = logging.getLogger(__name__)
# Its errors reach us as exceptions; what it also logs, some of it at the root logger, is alarming and says less.
logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
logging.getLogger().addFilter(lambda record: record.pathname != py4j.java_gateway.__file__)

#: the Spark of the installed package: another one that SPARK_HOME names would not fit its Python half
SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT = SPARK_HOME / "bin" / "spark-submit"

_START_S = 120.0
_STOP_S = 20.0
_POLL_S = 0.02
_LINES_KEPT = 30
#: printed by every Java that finds options in its environment, as in many containers; harmless
_PICKED_UP = re.compile(r"(NOTE: )?Picked up \w*JAVA_\w*OPTIONS: ")
#: variables that would change which Spark runs, or how
_FOREIGN = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "PYSPARK_SUBMIT_ARGS", "SPARK_TESTING")


class JvmKilled(Unreachable):
    """The JVM was killed while it started. Another attempt may succeed."""


class Jvm:
    """A running JVM and the gateway to it."""

    def __init__(self, conf: Mapping[str, str], environ: Mapping[str, str], directory: Path) -> None:
        """Launch it; `directory` is for its output at start. Raises SettingsError or Unreachable, quoting it."""
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._started = False
        self.process, self._reader = self._spawn(conf, environ, directory / "gateway")
        try:
            port, secret = self._wait(directory / "gateway")
            with environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
                self.gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        except BaseException:
            self._end()
            raise
        # Output before that goes into the error message, if there is one.
        self._started = True
        for line in self._lines:
            self._tell(line)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """Stop it in any state, leaving no socket and no process."""
        with suppress(Py4JError, OSError):
            self.gateway.shutdown()
        with suppress(Py4JError, OSError):
            self.gateway.close()
        self._end()

    def _spawn(
        self, conf: Mapping[str, str], environ: Mapping[str, str], info: Path
    ) -> tuple[subprocess.Popen[bytes], threading.Thread]:
        info.unlink(missing_ok=True)
        flags = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        process = subprocess.Popen(
            [SUBMIT, *flags, "pyspark-shell"],
            # It exits when this pipe closes, so with us, however we exit.
            stdin=subprocess.PIPE,
            # Spark reports errors on stderr, a JVM that cannot start on stdout.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=inherited
            | {"SPARK_HOME": str(SPARK_HOME), "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)}
            | dict(environ),
            # Ctrl-C and the like go to the terminal's whole group; a range under way needs its JVM to the end.
            start_new_session=True,
        )
        reader = threading.Thread(target=self._listen, args=[process], name="spark-output", daemon=True)
        reader.start()
        return process, reader

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            if self._started:
                self._tell(text)

    @staticmethod
    def _tell(line: str) -> None:
        logger.log(logging.DEBUG if _PICKED_UP.match(line) else logging.WARNING, "spark: %s", line)

    def _wait(self, info: Path) -> tuple[int, str]:
        """Port and secret of the gateway, which it writes to a file when it listens."""
        deadline = time.monotonic() + _START_S
        while not info.exists():
            if not self.alive:
                self._reader.join(_POLL_S * 10)
                # Killed by a signal, or with the exit code a shell gives for one: the next attempt may succeed.
                if not 0 <= self.process.returncode <= 128:
                    raise JvmKilled(f"Spark's JVM was killed while it started: {self._last_words()}")
                raise SettingsError(f"Spark's JVM did not start: {self._last_words()}", field="spark")
            if time.monotonic() > deadline:
                raise Unreachable(f"Spark's JVM did not start within {_START_S:.0f} s: {self._last_words()}")
            time.sleep(_POLL_S)
        content = info.read_bytes()
        info.unlink()
        port, length = struct.unpack(">ii", content[:8])
        return port, content[8 : 8 + length].decode()

    def _last_words(self) -> str:
        return " / ".join(self._lines) or "it printed nothing"

    def _end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(_STOP_S)
        self.process.stdout.close()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while: PySpark reads some of its settings only from there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
