"""One who reads the docs and runs what they show, as it is written.

The shell finds `.venv/bin/tidelock` where the pages say it is, but the command itself runs in the tests' own process:
everything is loaded there, and one Spark serves all. A process each would take a second, and some ten with a Spark.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import run
from tests.faults.servers import ROOT
from tests.javascript import clients
from tidelock.spark.runtime import Spark

#: bounds what hangs
PATIENCE_S = 120
INTERPRETERS = {
    "sh": ["sh", "-eu", "-c"],
    "python": [sys.executable, "-W", "error", "-c"],
    "js": ["node", "--input-type=module", "-e"],
}
#: a complete one of a subscription
_EVENT = re.compile(r"^data: \{.*\n", re.MULTILINE)
#: what starts a Spark by Tidelock's settings
_SESSION = re.compile(r"^from tidelock\.spark import .*\bsession\b", re.MULTILINE)
#: hands over directory and words, and does with the answer what the command would have
_COMMAND = """\
import json, os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as asking:
    asking.sendall(json.dumps([os.getcwd(), sys.argv[1:]]).encode())
    asking.shutdown(socket.SHUT_WR)
    code, output, errors = json.loads(b"".join(iter(lambda: asking.recv(65536), b"")))
sys.stdout.write(output)
sys.stderr.write(errors)
sys.exit(code)
"""


class Reader:
    """Runs snippets in one directory."""

    def __init__(self, url: str, given: Mapping[str, str], place: Path, listening: socket.socket) -> None:
        """`given`: settings that commands and programs find in their environment."""
        self._address = url.removeprefix("http://")
        self._given = dict(given)
        self._place = clients(place)
        self._listening = listening
        self._environ = os.environ | self._given | {"PYTHONPATH": str(ROOT)}
        program, command = place / "command.py", place / ".venv" / "bin" / "tidelock"
        program.write_text(_COMMAND.format(port=listening.getsockname()[1]))
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {program} "$@"\n')
        command.chmod(0o755)

    def run(self, kind: str, text: str) -> None:
        """Raises AssertionError for what does not work. What follows for ever is followed until it tells something."""
        script = text.replace("127.0.0.1:8080", self._address)
        script = script.replace("curl -s ", "curl -sS --fail-with-body ")
        script = script.replace("curl -sN ", "curl -sSN --fail-with-body ")
        if kind == "python" and _SESSION.search(text):
            self._in_the_shared_spark(script)
        else:
            self._in_a_process(kind, script, endless="curl -sN " in text)

    def _in_a_process(self, kind: str, script: str, *, endless: bool) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with tempfile.TemporaryFile("w+") as output:

            def said() -> str:
                output.seek(0)
                return output.read()

            process = subprocess.Popen(
                [*INTERPRETERS[kind], script], cwd=self._place, env=self._environ, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                while process.poll() is None:
                    if endless and _EVENT.search(said()):
                        return
                    assert time.monotonic() < deadline, f"it has not ended: {said()}"
                    self._answer_commands()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            assert (process.returncode, endless) == (0, False), said()

    def _answer_commands(self) -> None:
        """For a moment."""
        with suppress(TimeoutError), self._listening.accept()[0] as asking:
            asking.settimeout(PATIENCE_S)
            directory, words = json.loads(b"".join(iter(lambda: asking.recv(65536), b"")))
            with chdir(directory):
                ended = run(None, *words, env=self._given)
            asking.sendall(json.dumps([ended.exit_code, ended.stdout, ended.stderr]).encode())

    def _in_the_shared_spark(self, script: str) -> None:
        """`session()` opens what stays open until its process ends, so the module is loaded for this snippet alone."""
        before = sys.modules.pop("tidelock.spark.frames", None)
        with pytest.MonkeyPatch.context() as patch, chdir(self._place):
            for name, value in self._given.items():
                patch.setenv(name, value)
            try:
                exec(compile(script, "snippet", "exec"), {"__name__": "__main__"})
            finally:
                sys.modules.pop("tidelock.spark.frames")._open.close()
                if before is not None:
                    sys.modules["tidelock.spark.frames"] = before


@contextmanager
def reading(url: str, given: Mapping[str, str], place: Path) -> Iterator[Reader]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.01)
        yield Reader(url, given, place, listening)


@contextmanager
def sharing(spark: Spark, place: Path) -> Iterator[None]:
    """Commands and snippets that start a Spark get this one, and relative paths mean this directory to it."""
    context: Any = spark.session.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(place)))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tidelock.spark.runtime.Spark", lambda *_: nullcontext(spark))
            yield
    finally:
        files.setWorkingDirectory(before)
