"""The log of changes: what the fold did to the tables, between the fold and its readers.

In come the changes of a range, which the codec (`segments`, `vectors`) packs and the fold stores in its transaction;
out go pages of Arrow (`log`) and Python values (`reader`), in order, for as long as they are retained. It never knows
what a row means, who reads it, or how it was computed.
"""
