"""Usage: what a customer used by a meter, and why the number is what it is.

In come a counter's name and a position in the ledger; out go its periods, figures and events, computed by Postgres from
the ledger by the fold's rules. It uses nothing of the fold but its position, except to check whether the two agree.
"""
