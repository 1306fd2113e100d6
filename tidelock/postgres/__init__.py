"""Postgres: where everything is kept; a server of yours, or an embedded one that Tidelock starts and stops.

In comes a database URL or a data directory; out go connections, a pool for reading, the schema brought up to date by
migrations, named queries, leases, and errors in words. This room must never know what is stored: no table of the
ledger, of the fold or of a reader is named here, except in `migrations/` and `schema.sql`. Only the numbers of all
leases are collected here (`leases.py`), so that none is used twice.
"""
