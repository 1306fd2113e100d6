"""Windows and ordered output: rows judged by their own time, aggregated or held, and released when their time has come.

In come a range's prepared rows and the stored open windows, held rows and watermarks; out go closed windows, ordered
rows, late rows and what stays open. The kernel decides; these modules bring it what it needs from Spark and Postgres.
They must never know how a meter counts, nor let a result depend on a row's range.
"""
