"""Triggers: webhooks for rows that enter or leave a condition, at least once and in order for every key.

In come changes of tables and control events that make or change triggers; out go transitions in the outbox and signed
requests to receivers. Transitions are a function of the ledger alone, so a replay finds the same IDs; only delivery
depends on clocks and chance. This room must never know how requests reach the API, nor how the fold works.
"""
