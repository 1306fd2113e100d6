"""Spark is started as Tidelock needs it, quietly; it ends with us and is started anew when it is gone."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tidelock.errors import SettingsError
from tidelock.fold.java import java_home
from tidelock.fold.jvm import Jvm
from tidelock.fold.rundirectory import RunDirectory
from tidelock.fold.session import Spark


@pytest.fixture
def data(jars: Path, tmp_path: Path) -> Path:
    """A data directory of this test's own, with the jars in it."""
    shutil.copytree(jars / "jars", tmp_path / "jars")
    return tmp_path


def test_the_session_computes_in_utc_and_raises_on_wrong_data(spark: Spark) -> None:
    row = spark.session.sql("SELECT current_timezone() AS zone, 1 AS one").toArrow().to_pylist()
    assert row == [{"zone": "UTC", "one": 1}]
    assert spark.session.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.jdbc
    assert spark.alive()


# In processes of their own: the session that all tests share must not be hurt.
_PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from tidelock.fold.session import Spark
from tidelock.settings import Spark as Settings

spark = Spark(Settings(master="local[1]", driver_memory=1 << 29), Path(sys.argv[1]))
first = spark.pid
{body}
"""


def run(data: Path, body: str) -> subprocess.Popen[str]:
    program = _PROGRAM.format(body=textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, data],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def ended(pid: int) -> bool:
    """Whether the process is gone within seconds; one that its parent did not wait for yet is."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_session_is_started_anew_when_its_jvm_was_killed_and_leaves_nothing_behind(data: Path) -> None:
    process = run(
        data,
        """
        assert spark.session.sql("SELECT 1").collect()
        os.kill(first, signal.SIGKILL)
        try:
            spark.session.sql("SELECT 2").collect()
        except Exception as error:
            assert spark.lost(error), error
        assert not spark.alive()
        spark.restart()
        assert spark.alive() and spark.pid != first
        try:
            spark.session.sql("SELECT 1 / 0").collect()
        except Exception as error:
            assert not spark.lost(error), error
        print(spark.session.sql("SELECT 3 AS three").toArrow().to_pylist())
        second = spark.pid
        spark.stop()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            os.kill(second, 0)
        except ProcessLookupError:
            print("stopped")
        """,
    )
    out, err = process.communicate(timeout=120)
    assert out.splitlines() == ["[{'three': 3}]", "stopped"], err
    # PySpark leaves sockets of results to the collector, which warns; nothing else may be said.
    assert [line for line in err.splitlines() if "spark:" in line] == []
    assert list((data / "spark").iterdir()) == []


def test_the_jvm_ignores_the_terminal_and_ends_with_its_python(data: Path) -> None:
    process = run(
        data,
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(first, flush=True)
        while True:
            spark.session.sql("SELECT 1").collect()
            print("works", flush=True)
        """,
    )
    assert process.stdout is not None
    jvm = int(process.stdout.readline())
    assert process.stdout.readline() == "works\n"
    os.killpg(process.pid, signal.SIGINT)
    for _ in range(5):
        assert process.stdout.readline() == "works\n"
    process.kill()
    process.communicate()
    assert ended(jvm)
    assert list((data / "spark").glob("run-*")), "a kill leaves its files"
    swept = RunDirectory(data / "spark")
    assert {path.stem for path in (data / "spark").iterdir()} == {swept.path.name}
    swept.remove()


def test_a_jvm_that_cannot_start_tells_why(data: Path) -> None:
    with pytest.raises(SettingsError, match=r"did not start: .*Too small maximum heap"):
        Jvm({"spark.driver.memory": "1m"}, {"JAVA_HOME": str(java_home(None, data))}, data)
