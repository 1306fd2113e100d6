"""Write-behind: one thread writes what was found, in order, while this one finds more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

#: rows that wait to be written at a time: those of two parts of a range
_ROWS_MAX = 300_000


class WriteBehind:
    """One thread. After a failure it does nothing more, and `settle` raises the error."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._ident: int | None = None
        self._pending: deque[tuple[int, Future[None]]] = deque()
        self._failed = False

    def do(self, work: Callable[[], object], rows: int = 0) -> None:
        """Have it done; waits while too many rows are waiting."""
        while self._pending and sum(count for count, _ in self._pending) + rows > _ROWS_MAX:
            self._settle_one()
        self._pending.append((rows, self._thread.submit(self._done, work)))

    def settle(self) -> None:
        """Wait until everything is done; the work itself does not wait. Raises its first error."""
        if threading.get_ident() != self._ident:
            while self._pending:
                self._settle_one()

    def _settle_one(self) -> None:
        self._pending.popleft()[1].result()

    def _done(self, work: Callable[[], object]) -> None:
        self._ident = threading.get_ident()
        if self._failed:
            return
        try:
            work()
        except BaseException:
            self._failed = True
            raise

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the work under way; after an error nothing else begins."""
        try:
            if error is None:
                self.settle()
        finally:
            self._failed = True
            self._thread.shutdown(cancel_futures=True)
