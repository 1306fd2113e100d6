"""The kernel: what a range does to the tables, as pure functions on whole Arrow and numpy columns.

Prepared rows and stored rows come in; final rows, changes, adjustments and error rows go out. It runs in the driver for
a small range and in Spark's Python workers for a large one, so it imports neither Spark nor a database.
"""
