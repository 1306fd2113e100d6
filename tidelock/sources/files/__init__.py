"""Files of events: read row by row for `import`, written page by page for `export`.

In come CSV, JSON lines or Parquet, and out go events in requests of limited size, each row once however often an import
is interrupted; an export goes the other way, from pages of the ledger. It must never hold a whole file, nor know what
is derived from the events.
"""
