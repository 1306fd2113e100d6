"""Usage: what customers used by a meter, why the number is what it is, and what is to be closed.

In come a meter or a counter's name and a position in the ledger; out go usage, statements and exports, read from the
fold's tables, figures and events, computed by Postgres from the ledger by the fold's rules, and decisions to close
periods. It must never know how the fold comes to its rows: whether the two agree is checked here.
"""
