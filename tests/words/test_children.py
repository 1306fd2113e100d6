"""A child that is kept running, whatever ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.budgets import HANG_S
from tidelock import children as child


async def starts(command: str, path: Path, count: int) -> None:
    """Until a child has been started so often."""
    running = asyncio.create_task(child.keep_running("child", ["sh", "-c", f"echo >> {path}; {command}"], ""))
    try:
        while not path.exists() or len(path.read_bytes()) < count:  # noqa: ASYNC110  (another process tells by a file)
            await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_only_a_child_that_ends_by_itself_is_started_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_PAUSES_S", (0.0, 3600.0))
    await asyncio.wait_for(starts("kill -9 $$", tmp_path / "killed", 4), HANG_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(starts("exit 3", tmp_path / "failed", 2), 0.5)
