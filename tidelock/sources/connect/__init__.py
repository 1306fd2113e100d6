"""Connectors: views of foreign systems, followed into the ledger as events of a keyed stream.

In come inserts, updates and deletes of a view's rows, from a system that reports up to which timestamp they are
complete; out go events with the row's key, and a position that survives the process. It must never know what the view
means, and a connector never knows the ledger: anything repeated after an outage is recorded once.
"""
