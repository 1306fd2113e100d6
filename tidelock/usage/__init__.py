"""Usage: what a customer used by a meter, and why the number is what it is.

In come a counter's name and a moment of the ledger; out go its periods, figures and the events it is made of, decided
by Postgres from the ledger as the fold decides them. It never takes from the fold more than how far it is, except to
say whether the two agree.
"""
