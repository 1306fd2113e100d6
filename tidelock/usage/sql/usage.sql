-- name: read_cursor
-- The sequence that a reader of the ledger is complete through; no row before its first.
SELECT sequence FROM cursors WHERE name = %s;
