"""Backfill: the rows of an older table of events, which has no sequence, into the ledger.

In comes a table of another Postgres, read in the order of a time and an id, with what its columns mean; out go events
to the sequencer, and a position that moves only when the rows before it are recorded. It must never know what becomes
of the events, nor write to the table it reads.
"""
