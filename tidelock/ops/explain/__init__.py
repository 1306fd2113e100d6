"""Explaining: why a counter is what it is, and what it was, from the events of the ledger themselves."""
