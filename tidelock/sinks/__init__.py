"""Sinks: the ledger in other stores, in the same order: Parquet files and ClickHouse.

In come events from the ledger or from its mirror, as Spark rows; out go the same rows in a store, step by whole step,
with a cursor in Postgres. A store is compared with the ledger and repaired range by range. This room must never know
what events mean, and a store never what another one does.
"""
