"""Connectors: views of foreign systems, followed into the ledger as events of a keyed stream."""
