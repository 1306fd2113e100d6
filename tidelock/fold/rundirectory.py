"""The run directory: where a running Spark keeps what it spills."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tidelock.postgres.account import belong_to_parent, make_directory
from tidelock.postgres.filelocks import FileLock


class RunDirectory:
    """One of this process's own. A killed process leaves its own behind; the next start sweeps it up."""

    def __init__(self, above: Path) -> None:
        make_directory(above.parent)
        make_directory(above)
        belong_to_parent(above)
        self._above = above
        self._sweep()
        self.path = Path(tempfile.mkdtemp(dir=above, prefix="run-"))
        self._lock = FileLock(self.path.with_suffix(".lock"))
        self._lock.take()

    def fresh(self) -> Path:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)
        return self.path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.path.unlink(missing_ok=True)
        self._lock.release()

    def _sweep(self) -> None:
        for path in self._above.glob("run-*.lock"):
            left = FileLock(path)
            with suppress(OSError):
                if left.take():
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink(missing_ok=True)
                    left.release()
