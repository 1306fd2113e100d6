"""Verifying a ledger that is served: the checks of `tidelock verify` in a separate process, one run at a time.

Hashing every event keeps a processor busy throughout: in this process every request would wait. `python -m
tidelock.api.verification` is that process; its task comes on standard input, not in arguments, which everybody on the
machine could read.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from tidelock.errors import TidelockError
from tidelock.instants import format_instant
from tidelock.ledger.findings import Check
from tidelock.ledger.verify import verify
from tidelock.postgres.database import Database

# How often progress is reported; and the longest line read from the other process.
_TOLD_S, _LINE_BYTES_MAX = 0.25, 2**20
_GENTLY = 10

State = Literal["none", "running", "done", "stopped", "failed"]


class Verification(msgspec.Struct, frozen=True, rename="camel"):
    """A run of the checks of the ledger: `done` of `total` sequences while it is running, the findings afterwards."""

    state: State
    started_at: str | None = None
    finished_at: str | None = None
    done: int = 0
    total: int = 0
    #: null until it is done
    ok: bool | None = None
    checks: list[Check] = []
    #: the difference that lies first in the ledger
    first: str | None = None
    #: why it failed
    error: str | None = None


class _Task(msgspec.Struct, frozen=True):
    url: str
    anchor: str


class _Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the other process."""

    done: int = 0
    total: int = 0
    checks: list[Check] | None = None
    first: str | None = None
    error: str | None = None


class Verifying:
    """The last run, and the current one."""

    def __init__(self, database: Database, anchor: Path) -> None:
        self._database = database
        self._anchor = anchor
        self.state = Verification("none")
        self._run: asyncio.Task[None] | None = None

    def start(self) -> Verification:
        """Start one, unless one is running."""
        if self.state.state != "running":
            self.state = Verification("running", started_at=_now())
            self._run = asyncio.create_task(self._follow(), name="verify")
        return self.state

    async def stop(self) -> Verification:
        await self.close()
        if self.state.state == "running":
            self._end("stopped")
        return self.state

    async def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, limit=_LINE_BYTES_MAX,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            self._end("failed", error=f"the verification could not be started: {error}")
            return
        try:
            await self._read(process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(_Task(self._database.url, str(self._anchor))))
        process.stdin.close()
        async for line in process.stdout:
            told = msgspec.json.decode(line, type=_Told)
            if told.error is not None:
                self._end("failed", error=told.error)
                return
            if told.checks is not None:
                ok = all(check.ok for check in told.checks)
                self._end("done", ok=ok, checks=told.checks, first=told.first)
                return
            self.state = msgspec.structs.replace(self.state, done=told.done, total=told.total)
        self._end("failed", error="the verification process exited before it finished")

    def _end(self, state: State, **found: object) -> None:
        self.state = msgspec.structs.replace(self.state, state=state, finished_at=_now(), **found)


def _now() -> str:
    return format_instant(time.time_ns() // 1_000_000 * 1_000_000)


def _check() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    told_at = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TOLD_S:
            told_at = time.monotonic()
            _tell(_Told(done, total))

    try:
        found = verify(Database(task.url), Path(task.anchor), progress)
    except TidelockError as error:
        _tell(_Told(error=error.message))
        return
    _tell(_Told(checks=found.report.checks, first=found.first))


def _tell(told: _Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    # Producers and readers go first.
    os.nice(_GENTLY)
    with suppress(BrokenPipeError, KeyboardInterrupt):
        _check()
