"""GraphQL over the tables: the schema, documents, their execution, and three transports.

In come documents with variables, over HTTP, server-sent events or a WebSocket; out go encoded payloads, read from the
tables or taken from a subscription. It never knows how the fold computes a row, and the transports know nothing of each
other.
"""
