"""The lock of `tidelock up`: one per directory, free as soon as its holder is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelock.errors import SettingsError
from tidelock.postgres.filelocks import DirectoryLock

HOLDER = """
import sys
from pathlib import Path
from tidelock.postgres.filelocks import DirectoryLock
DirectoryLock(Path(sys.argv[1])).acquire()
print("up", flush=True)
sys.stdin.read()
"""


def test_a_second_up_on_one_directory_is_refused_with_the_pid(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(SettingsError) as refused:
        DirectoryLock(tmp_path).acquire()
    assert f"process {os.getpid()}" in str(refused.value)
    assert "--data" in str(refused.value)
    assert refused.value.field == "data"


def test_after_a_clean_end_the_directory_is_free(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        pass
    with DirectoryLock(tmp_path):
        pass


def test_after_a_kill_the_directory_is_free(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        with pytest.raises(SettingsError, match=f"process {holder.pid}"):
            DirectoryLock(tmp_path).acquire()
        holder.kill()
        holder.wait()
        with DirectoryLock(tmp_path):
            pass


def test_two_directories_are_two_locks_and_are_made_when_absent(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path / "a" / "b"), DirectoryLock(tmp_path / "c"):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_that_cannot_be_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="Cannot use the data directory"):
        DirectoryLock(tmp_path / "file").acquire()
