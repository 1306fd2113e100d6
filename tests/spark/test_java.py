"""A Java that fits is found, and where there is none people are told what to do."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.commandline import run
from tidelock.errors import SettingsError
from tidelock.spark import java


def fake(home: Path, version: str, told: str = "") -> Path:
    """A program that answers like a Java of this version, and otherwise prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"""#!/bin/sh
case "$1" in
    -XshowSettings*) printf '  java.home = %s\\n  java.specification.version = %s\\n' '{told or home}' {version} >&2 ;;
    *) printf '%s\\n' "$@" ;;
esac
"""
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def _nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_PLACES", ())
    monkeypatch.setattr(java, "_wheel", lambda: None)


@pytest.mark.usefixtures("_nowhere_else")
def test_java_home_goes_before_the_path_when_it_fits(tmp_path: Path) -> None:
    path = str(fake(tmp_path / "path", "21") / "bin")
    good = {"JAVA_HOME": str(fake(tmp_path / "good", "17")), "PATH": path}
    assert java.find_java(good).home == tmp_path / "good"
    old = {"JAVA_HOME": str(fake(tmp_path / "old", "1.8")), "PATH": path}
    assert java.find_java(old).home == tmp_path / "path"


@pytest.mark.usefixtures("_nowhere_else")
def test_a_wrapper_on_the_path_is_asked_where_its_java_is(tmp_path: Path) -> None:
    fake(tmp_path / "shims", "17", told=str(tmp_path / "real"))
    assert java.find_java({"PATH": str(tmp_path / "shims" / "bin")}).home == tmp_path / "real"


@pytest.mark.usefixtures("_nowhere_else")
def test_without_any_it_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(fake(tmp_path / "jdk", "25")), "PATH": str(tmp_path / "none")}
    with pytest.raises(SettingsError, match=r"needs Java 17 or 21.*Found only Java 25 in .*jdk.*pip install") as raised:
        java.java_home(None, tmp_path, environ)
    assert raised.value.field == "spark.java"


def test_a_java_that_was_named_must_fit(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"is Java 11; Spark needs Java 17 or 21"):
        java.java_home(fake(tmp_path / "jdk", "11"), tmp_path)
    with pytest.raises(SettingsError, match="is not a working Java"):
        java.java_home(tmp_path / "nothing", tmp_path)


def test_the_java_that_spark_gets_leaves_out_the_module_and_nothing_else(tmp_path: Path) -> None:
    home = java.java_home(fake(tmp_path / "it's a jdk", "17", told=str(tmp_path / "it's a jdk").replace("'", "'\\''")),
                          tmp_path / "data")  # fmt: skip
    arguments = ["-cp", "a b", java._MODULE, "", "it's", "--add-modules=jdk.other"]
    told = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert told.stdout.split("\n") == ["-cp", "a b", "", "it's", "--add-modules=jdk.other", ""]
    before = os.stat(home / "bin" / "java").st_ino
    java._shimmed(java.Java(tmp_path / "it's a jdk", "17"), tmp_path / "data")
    assert os.stat(home / "bin" / "java").st_ino == before, "written once"


@pytest.mark.parametrize("command", ["up", "demo", "fold"])
def test_without_java_nothing_is_started(command: str, tmp_path: Path) -> None:
    settings = tmp_path / "tidelock.toml"
    settings.write_text(f'port = 0\n[spark]\njava = "{tmp_path / "none"}"\n')
    ran = run(None, command, "--config", settings, "--data", tmp_path / "data", env={"TIDELOCK_FOLD_ENABLED": "true"})
    assert ran.exit_code == 2
    said = ran.output
    assert "is not a working Java" in said
    assert "is up" not in said
    assert not (tmp_path / "data" / "postgres").exists()
