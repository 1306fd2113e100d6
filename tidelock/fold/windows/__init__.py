"""Windows and ordered output: rows judged by their own time, gathered, and given out when their time has come.

In come a range's prepared rows and what is stored of open windows, held rows and watermarks; out go closed windows,
ordered rows, late rows and what stays open, for the kernel decides and these modules bring it what it needs from Spark
and Postgres. They must never know how a meter counts, nor let a result depend on which range a row came in.
"""
