"""The PostgreSQL driver is fetched once; without it the fold goes on."""

import logging
import shutil
import zipfile
from pathlib import Path

import pytest

from tidelock.errors import Unreachable
from tidelock.spark import packages as module
from tidelock.spark.packages import NAME, jar_set, jdbc_driver

JAVA = Path("/nowhere")


def submit(directory: Path, script: str) -> Path:
    program = directory / "spark-submit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def jar(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("org/postgresql/Driver.class", b"")
    return path


def test_it_is_fetched_once(tmp_path: Path) -> None:
    source = jar(tmp_path / "source.jar")
    script = 'for flag; do case $flag in spark.jars.ivy=*) ivy=${flag#*=} ;; esac; done\nmkdir "$ivy/jars"\n'
    # As where the machine's name does not resolve.
    script += 'test "$SPARK_LOCAL_IP" = 127.0.0.1 || exit 1\n'
    fetch = submit(tmp_path, f'{script} cp {source} "$ivy/jars/org.postgresql_{NAME}"; echo x >> {tmp_path}/calls')
    data = tmp_path / "data"
    assert jdbc_driver(data, fetch, JAVA, {}) == jdbc_driver(data, fetch, JAVA, {}) == data / "jars" / NAME
    assert (tmp_path / "calls").read_text() == "x\n"
    assert [path.name for path in (data / "jars").iterdir()] == [NAME]
    (data / "jars" / NAME).write_bytes(b"half of a jar")
    assert jdbc_driver(data, fetch, JAVA, {}) is not None
    assert zipfile.is_zipfile(data / "jars" / NAME)


def test_a_set_of_jars_is_fetched_once_and_whole(tmp_path: Path) -> None:
    source = jar(tmp_path / "source.jar")
    script = 'for flag; do case $flag in spark.jars.ivy=*) ivy=${flag#*=} ;; esac; done\nmkdir "$ivy/jars"\n'
    half = submit(tmp_path, f'{script} cp {source} "$ivy/jars/org.a_a-1.jar"')
    data = tmp_path / "data"
    with pytest.raises(Unreachable, match=r"org.a:a:1, org.b:b:2 could not be downloaded"):
        jar_set(data, "both", ["org.a:a:1", "org.b:b:2"], half, java_home=JAVA, conf={})
    whole = submit(tmp_path, f'{script} cp {source} "$ivy/jars/org.a_a-1.jar"; cp {source} "$ivy/jars/org.b_b-2.jar"')
    fetched = jar_set(data, "both", ["org.a:a:1", "org.b:b:2"], whole, java_home=JAVA, conf={})
    assert [path.name for path in fetched] == ["org.a_a-1.jar", "org.b_b-2.jar"]
    assert jar_set(data, "both", ["org.a:a:1", "org.b:b:2"], Path("/nowhere"), java_home=JAVA, conf={}) == fetched
    assert [path.name for path in (data / "jars").iterdir()] == ["both"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo ':: '; echo 'Server access error at url x'; exit 1", "Server access error"),
        ("exec sleep 60", "no response"),
    ],
)
def test_without_a_network_there_is_one_warning_that_says_how_to_repair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(module, "_RESOLVE_S", 1)
    with caplog.at_level(logging.WARNING):
        assert jdbc_driver(tmp_path / "data", submit(tmp_path, f"exec 2>&1; {script}"), JAVA, {}) is None
    (said,) = caplog.messages
    assert reason in said
    assert str(tmp_path / "data" / "jars" / NAME) in said
    assert not list((tmp_path / "data" / "jars").iterdir())


def test_a_jar_that_somebody_put_there_serves(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    shutil.move(jar(tmp_path / "x.jar"), tmp_path / "jars" / NAME)
    assert jdbc_driver(tmp_path, Path("/nowhere"), JAVA, {}) == tmp_path / "jars" / NAME


def test_jars_that_were_fetched_beforehand_serve_without_a_network(tmp_path: Path) -> None:
    """As in the image, whose data directory is an empty volume."""
    fetched, data, nowhere = tmp_path / "image" / "jars", tmp_path / "data", Path("/nowhere")
    (fetched / "both").mkdir(parents=True)
    driver, other = jar(fetched / NAME), jar(fetched / "both" / "org.a_a-1.jar")
    assert jdbc_driver(data, nowhere, JAVA, {}, fetched=fetched) == driver
    assert jar_set(data, "both", ["org.a:a:1"], nowhere, java_home=JAVA, conf={}, fetched=fetched) == [other]
    assert not data.exists()
