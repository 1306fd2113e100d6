"""The mirror: the ledger in Kafka, event by event, in its order."""
