"""The fold: turns the ledger into tables and changes, exactly once, with Spark and on whole columns.

In come ranges of the ledger (`ranges`, `source`) and the definitions; a range is prepared by Spark SQL (`streams`,
`meters`, `latest`, `timing`, `prepare`), goes through the kernel, in the driver (`rangefold`) or in Spark's workers
(`executors`), and out go rows, changes and the cursor in one transaction (`store`), again and again (`runner`). What
the close of a period does to the tables is in `closing`. It must never know who reads the tables or the changes, and
nothing in it may depend on how the ledger was cut into ranges.
"""
