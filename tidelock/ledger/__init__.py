"""The ledger in Postgres: the server it lives in, its schema, its one order."""
