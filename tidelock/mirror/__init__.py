"""The mirror: the ledger in Kafka, event by event, in its order, exactly once as its offsets are recorded.

In comes the ledger in pages; out go messages, and in Postgres where each of them is. What was acknowledged is recorded
together with the cursor, so a mirror that was killed knows what it sent. This room must never know what events mean.
"""
