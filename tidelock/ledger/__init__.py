"""The ledger: events in the one order in which they were committed, and everything that protects it.

In come judged events from `ingest` and control events; out go verdicts, recorded events in order, and announcements of
new ones. Order is decided once, under the lock on the head row, and never reconsidered. This room must never know what
is derived from events (tables, triggers, stores), nor anything about HTTP.
"""
