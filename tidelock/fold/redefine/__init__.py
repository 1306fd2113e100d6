"""Definitions that change, and tables that are checked.

In come the wanted definitions and the catalog of those that the tables follow; out go a shadow, folded from the first
event alongside the live tables, and the swap that replaces them at a control event. Nothing here decides how an event
is folded: a shadow folds ranges with the code that folds those of the tables.
"""
