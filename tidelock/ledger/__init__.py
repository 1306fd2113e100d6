"""The ledger: events in the one order in which they were committed, and everything that stands guard over it.

In come judged events from `ingest` and control events; out go verdicts, recorded events in order, and the news that
there are more. Order is decided once, under the lock on the head row, and is never looked at again. This room must
never know what is made of events: not of tables, triggers or stores, and nothing of HTTP.
"""
