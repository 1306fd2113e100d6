"""Spark is started as Tidelock needs it, quietly; it ends with us and is started again when it is gone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.budgets import HANG_S
from tests.conftest import Databases
from tests.fold.folding import differences, expected, pictured
from tests.law.ledgers import COMPUTED
from tests.law.packs import drawn, pack
from tests.law.test_law import READERS, ROOT, Way, tables_in
from tests.law.timelines import timed_definitions, timed_ledgers
from tests.ledgers import write_ledger
from tests.model import fold
from tidelock.errors import SettingsError
from tidelock.spark.java import java_home
from tidelock.spark.jvm import Jvm
from tidelock.spark.runtime import RunDirectory, Spark


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
import signal, sys, time
from pathlib import Path
from tidelock.spark.java import java_home
from tidelock.spark.jvm import Jvm
from tidelock.spark.runtime import RunDirectory

data = Path(sys.argv[1])
directory = RunDirectory(data / "spark")
jvm = Jvm({"spark.driver.memory": "512m"}, {"JAVA_HOME": str(java_home(None, data))}, directory.fresh())
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(jvm.process.pid, flush=True)
while True:
    assert jvm.gateway.jvm.System.nanoTime()
    print("works", flush=True)
    time.sleep(0.01)
"""


def ended(pid: int) -> bool:
    """Whether the process is gone within seconds; one that its parent did not wait for yet is."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.timeout(600)
def test_a_spark_whose_jvm_was_killed_is_started_again_folds_on_one_core_and_leaves_nothing_behind(
    data: Path, databases: Databases, number: int
) -> None:
    toml = drawn(timed_definitions(), 10, number)[-1]
    # Few windows, because its Java has compiled nothing yet.
    toml = {**toml, "windows": {name: toml["windows"][name] for name in ("tumbling0", "count0")}}
    packed = pack(drawn(timed_ledgers(), 20, number), Random(number))
    wanted = expected(fold(packed.events, toml, COMPUTED), toml)
    with databases() as database:
        write_ledger(database, packed.events, packed.ends)
        ranges = Way("everything", READERS).ranges(packed, Random(number))
        given = (database.url, str(data), json.dumps(toml), json.dumps(ranges))
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-m", "tests.spark.one_core", *given],
            cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500,
        )  # fmt: skip
        assert ran.stdout.splitlines() == ["[{'three': 3}]", "stopped"], ran.stderr
        assert differences(pictured(database, tables_in(toml)), wanted) == {}
    # PySpark leaves sockets of results to the collector, which warns; nothing else may be said.
    assert [line for line in ran.stderr.splitlines() if "spark:" in line] == []
    assert list((data / "spark").iterdir()) == []


def test_the_jvm_ignores_the_terminal_and_ends_with_its_python(data: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _PROGRAM, data],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
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


def test_a_jvm_that_cannot_start_says_why(data: Path) -> None:
    with pytest.raises(SettingsError, match=r"did not start: .*Too small maximum heap"):
        Jvm({"spark.driver.memory": "1m"}, {"JAVA_HOME": str(java_home(None, data))}, data)
