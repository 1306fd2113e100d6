"""Tidelock: one ordered ledger for retried, late, out-of-order events, and everything derived from it."""

__version__ = "0.1.0"
