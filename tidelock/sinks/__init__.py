"""Sinks: the ledger in other stores, in the same order: Parquet files and ClickHouse."""
