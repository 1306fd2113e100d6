"""GraphQL over the tables: the schema, documents, their execution, and the three transports they come by.

In come documents with variables, by HTTP, server-sent events or a WebSocket; out go encoded payloads, read from the
tables or taken from a subscription. It never knows how the fold makes a row, and each transport knows nothing of the
others.
"""
