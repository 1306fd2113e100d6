"""Ingest: bytes from a producer to events the ledger can record, or a reason per event why not."""
