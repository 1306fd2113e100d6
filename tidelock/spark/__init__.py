"""Spark: a session of our own and what it runs on, and the ledger as a DataFrame for your own jobs.

    from tidelock.spark import ledger, session

    events = ledger(session(), streams="api_calls")

It takes the settings of Spark and gives a running session with its jars and Python workers. It knows nothing of what
is folded or loaded with it. `jars`, `ledger` and `session` are public; the modules are not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelock.spark.frames import jars, ledger, session

__all__ = ["jars", "ledger", "session"]


def __getattr__(name: str) -> Any:
    """Load the public names only when they are used: the fold imports other modules of this package."""
    if name in __all__:
        return getattr(import_module("tidelock.spark.frames"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
