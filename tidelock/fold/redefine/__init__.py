"""Definitions that change, and tables that are checked.

In come the definitions that are wanted and the catalog of those by which the tables were made; out go a shadow, folded
from the first event on beside the tables that are read, and the swap that puts it in their place at a control event.
Nothing here decides how an event is folded: a shadow folds with the same folder as the tables.
"""
