-- name: read_cursor
-- The sequence that a reader of the ledger is complete through; no row before its first.
SELECT sequence FROM cursors WHERE name = %s;

-- name: closes
-- The closes of a meter that hold for a tenant, in order.
SELECT closed_sequence, through FROM tidelock_tables."meters$closed"
WHERE tenant_id IN (%s, %s) AND metric = %s AND closed_sequence <= %s ORDER BY closed_sequence;
