"""Threads for the driver's work on Arrow columns: Spark waits meanwhile, and Arrow holds no lock of Python's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

#: fewer rows are done before a thread has begun
_ROWS_MIN = 10_000


def each(function: Callable[[_Given], _Made], items: Iterable[_Given], rows: int) -> list[_Made]:
    """What a function makes of each item, of which every one has so many rows."""
    return [function(item) for item in items] if rows < _ROWS_MIN else list(_threads().map(function, items))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="columns")
