"""The mirror: the ledger in Kafka, event by event, in its order, exactly once as its offsets are recorded.

In comes the ledger in pages; out go messages, and their positions, recorded in Postgres. Acknowledged messages are
recorded together with the cursor, so a mirror that was killed knows what it sent. This room must never know what events
mean.
"""
