"""Work of a server in a process of its own, one run at a time: how it is started, followed and stopped.

Hashing every event, or folding the ledger, keeps a processor busy throughout: in the server's process every request
would wait. The other process is `python -m` of the module that has the work. Its task comes on standard input, not in
arguments, which everybody on the machine could read; it answers with states, one a line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tidelock.errors import TidelockError
from tidelock.instants import format_instant

# How often progress is reported, the longest line, and how long a stopped process may take to clean up.
_PROGRESS_S, _LINE_BYTES_MAX, _STOP_S = 0.25, 2**20, 10.0
#: producers and readers go first
_NICENESS = 10

#: called with the sequences that are done, and all there are
Report = Callable[[int, int], None]


class RunState(msgspec.Struct, frozen=True, rename="camel"):
    """A run: `done` of `total` sequences while it is running."""

    state: Literal["none", "running", "done", "stopped", "failed"]
    started_at: str | None = None
    finished_at: str | None = None
    done: int = 0
    total: int = 0
    #: why it failed
    error: str | None = None


State = TypeVar("State", bound=RunState)
Given = TypeVar("Given")


class Background(Generic[State]):
    """The current run, or the last one."""

    def __init__(self, module: str, name: str, none: State) -> None:
        """`module`: what the other process runs; it calls `run_task`."""
        self.state = none
        self._module = module
        self._name = name
        self._run: asyncio.Task[None] | None = None

    async def stop(self) -> State:
        if self.state.state == "running" and self._run is not None:
            self._finish(msgspec.structs.replace(self.state, state="stopped"))
            # The process cleans up meanwhile; the next run waits for that.
            self._run.cancel()
        return self.state

    async def close(self) -> None:
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)

    def _begin(self, prepare: Callable[[], tuple[object, Sequence[int]]]) -> State:
        """`prepare` makes the task, and opens the files that the process inherits."""
        self.state = type(self.state)("running", started_at=_now())
        self._run = asyncio.create_task(self._follow(prepare, self._run), name=self._name)
        return self.state

    async def _follow(
        self, prepare: Callable[[], tuple[object, Sequence[int]]], previous: asyncio.Task[None] | None
    ) -> None:
        if previous is not None:
            await asyncio.gather(previous, return_exceptions=True)
        try:
            task, files = prepare()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, pass_fds=files, start_new_session=True, limit=_LINE_BYTES_MAX,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"the {self._name} could not be started: {error}")
            return
        try:
            await self._read(process, task)
        finally:
            await _ended(process)

    async def _read(self, process: asyncio.subprocess.Process, task: object) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(task, enc_hook=str))
        process.stdin.close()
        async for line in process.stdout:
            found = msgspec.json.decode(line, type=type(self.state))
            if found.state == "running":
                self.state = msgspec.structs.replace(self.state, done=found.done, total=found.total)
                continue
            if found.state == "done":
                # It cleans up before it exits.
                await process.wait()
            self._finish(found)
            return
        self._fail(f"the process of the {self._name} exited before it finished; see the server's log")

    def _fail(self, error: str) -> None:
        self._finish(type(self.state)("failed", error=error))

    def _finish(self, found: State) -> None:
        run = self.state
        self.state = msgspec.structs.replace(
            found, started_at=run.started_at, finished_at=_now(), done=run.done, total=run.total
        )


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            pass
        finally:
            # What it leaves is for the next run to clean up.
            with suppress(ProcessLookupError):
                process.kill()
    await process.wait()


def _now() -> str:
    return format_instant(time.time_ns() // 1_000_000 * 1_000_000)


def run_task(task: type[Given], work: Callable[[Given, Report], RunState]) -> None:
    """The other process: do the task that standard input has, and answer with progress and the state at the end."""
    os.nice(_NICENESS)
    with suppress(BrokenPipeError, KeyboardInterrupt):
        given = msgspec.json.decode(sys.stdin.buffer.read(), type=task, dec_hook=_from_text)
        try:
            _answer(work(given, _report()))
        except TidelockError as error:
            _answer(RunState("failed", error=error.message))


def _from_text(type_: type[Any], text: Any) -> Any:
    return type_(text)


def _report() -> Report:
    reported_at = 0.0

    def report(done: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _PROGRESS_S:
            reported_at = time.monotonic()
            _answer(RunState("running", done=done, total=total))

    return report


def _answer(state: RunState) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(state) + b"\n")
    sys.stdout.buffer.flush()
