"""Backfill: the rows of an older table of events, which has no sequence, into the ledger.

In comes a table of another Postgres, read in the order of a time and an ID, with a mapping of its columns; out go
events to the sequencer, and a position that moves only when the rows before it are recorded. It must never know what is
derived from the events, nor write to the table it reads.
"""
