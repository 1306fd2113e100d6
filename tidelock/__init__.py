"""Tidelock: one ordered ledger for retried, late, out-of-order events, and everything derived from it."""

import os

__version__ = "0.2.0"

# Arrow's memory is given back a minute after its last use, not at once: the next range of a backlog needs as much, and
# requesting it from the system again took a third of the driver's time. Arrow reads this when it is imported first.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")
