"""The fold: ledger in, tables and changes out, on Spark."""
