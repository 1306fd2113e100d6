"""Backfill: the rows of an older table of events, which has no sequence, into the ledger."""
