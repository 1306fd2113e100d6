"""A broker for development and tests: Kafka itself, one node that is also its own controller, on this machine only."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tidelock.errors import SettingsError, Unreachable
from tidelock.mirror.cluster import KafkaCluster
from tidelock.postgres.account import make_directory
from tidelock.postgres.ports import LOOPBACK, free_port, free_ports, is_free
from tidelock.settings.groups import KafkaSettings
from tidelock.spark.java import java_home
from tidelock.spark.jvm import SPARK_HOME, SUBMIT
from tidelock.spark.packages import jar_set

VERSION = "4.3.1"
# With the binding of its logging: without it failures are mute.
_PACKAGES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
_LOG4J = Path(__file__).with_name("kafka-log4j2.properties")
_MEMORY = "-Xmx256m"
_START_S = 90.0
_STOP_S = 20.0
_PAUSE_S = 0.1
#: of its last output
_WORDS = 2_000

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.enable=false
"""


def broker_jars(data: Path, java: Path | None = None) -> list[Path]:
    """Kafka's own jars, downloaded once. Raises Unreachable if that fails."""
    return jar_set(data, f"kafka-{VERSION}", _PACKAGES, SUBMIT, java_home=java_home(java, data), conf={})


class Broker:
    """A broker with its data in a directory. It ends with the process that started it."""

    def __init__(self, directory: Path, data: Path, java: Path | None = None, port: int = 0) -> None:
        """`data` is where jars and a Java are kept; port 0 takes any free one, the same again after a stop."""
        self._directory = directory.absolute()
        self._java = java_home(java, data) / "bin" / "java"
        scala = next((SPARK_HOME / "jars").glob("scala-library-2.13.*.jar"))
        self._jars = [*broker_jars(data, java), scala]
        self._port, self._controller = (port, free_port()) if port else free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        return self._directory / "kafka.log"

    def start(
        self,
        wrapper: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Start it and wait until it answers a client with `options`; `wrapper` is a command that runs it. Raises
        Unreachable."""
        if not is_free(self._port):
            raise SettingsError(f"port {self._port} is in use; choose another with --port", field="port")
        make_directory(self._directory)
        config = self._configure(properties or {})
        self._process = self._spawn(["kafka.Kafka", str(config)], wrapper)
        deadline = time.monotonic() + _START_S
        while not self._answers(options or {}):
            if self._process.poll() is not None:
                raise Unreachable(f"Kafka did not start: {self._last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                raise Unreachable(f"Kafka did not respond within {_START_S:.0f} s: {self._last_words()}")
            time.sleep(_PAUSE_S)

    def check(self) -> None:
        """Raises Unreachable when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise Unreachable(f"Kafka ended: {self._last_words()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _configure(self, properties: Mapping[str, str]) -> Path:
        data = self._directory / "kafka"
        text = _PROPERTIES.format(host=LOOPBACK, port=self._port, controller=self._controller, data=data)
        config = self._directory / "kafka.properties"
        config.write_text(text + "".join(f"{name}={value}\n" for name, value in properties.items()))
        if not (data / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "-t", "dGlkZWxvY2stZGV2ZWxvcA", "-c", str(config)]
            if self._spawn(tool).wait() != 0:
                raise Unreachable(f"Kafka could not prepare {data}: {self._last_words()}")
        return config

    def _spawn(self, arguments: Sequence[str], wrapper: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        # A broker whose starter was killed would stay for ever.
        mortal = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        logging = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
        classes = os.pathsep.join(map(str, self._jars))
        java = [str(self._java), _MEMORY, "-XX:+UseSerialGC", "-XX:-UsePerfData", logging, "-cp", classes]
        with self.log.open("ab") as said:
            return subprocess.Popen(
                [*mortal, *wrapper, *java, *arguments],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self._directory, start_new_session=True,
            )  # fmt: skip

    def _answers(self, options: Mapping[str, str]) -> bool:
        # Not by looking whether the port is free: that takes it for a moment, perhaps when Kafka asks.
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, self._port)) != 0:
                return False
        try:
            KafkaCluster(KafkaSettings(brokers=(self.address,), options=options), 0).look()
        except Unreachable:
            return False
        return True

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-_WORDS:].strip() or "it printed nothing"

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
