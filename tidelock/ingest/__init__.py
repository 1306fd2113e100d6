"""Ingest: bytes from a producer to events the ledger can record, or a reason per event why not.

In comes the body of a request, plain or compressed, JSON or CloudEvents; out goes, for each event in it, a judged event
with its identity and the parts that are stored, or an objection that names the field. It must never know a clock, the
database, or what is already recorded: the same bytes always give the same result.
"""
