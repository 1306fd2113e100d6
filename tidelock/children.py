"""A child process that is kept running: the fold, the mirror or the loader beside the server.

Apart from the server, so that each has its own Python and one can fail without the other. The child notices that its
parent is gone when its standard input ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from tidelock.errors import SettingsError

log = logging.getLogger(__name__)

_PAUSES_S = (1.0, 2.0, 5.0, 15.0)
#: a child that ran this long had started properly, and is restarted at once
_SETTLED_S = 60.0
_STOP_S = 20.0


async def keep_running(name: str, command: Sequence[str], url: str, *, vital: bool = True) -> None:
    """Run a command again whenever it ends; `{url}` among its words is where the server listens.

    Raises SettingsError when it reports that its settings are wrong, unless the others can do without it.
    """
    failures = 0
    while True:
        started = time.monotonic()
        code = await _run([url if word == "{url}" else word for word in command])
        if code == SettingsError.exit_code and vital:
            raise SettingsError(f"the {name} cannot run with these settings; see the error above")
        # A child that was killed did not fail by itself: it may be killed again, and should make progress meanwhile.
        failures = 0 if code < 0 or time.monotonic() - started > _SETTLED_S else failures + 1
        pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
        log.warning("the %s exited with code %s; restarting it in %.0f s", name, code, pause_s)
        await asyncio.sleep(pause_s)


async def _run(command: Sequence[str]) -> int:
    # A group of its own: Ctrl-C in the terminal is for the server, which then stops the child in turn.
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, start_new_session=True)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
