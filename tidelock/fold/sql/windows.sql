-- name: range_end
-- The source timestamp of the last event of a range.
SELECT max(last_source_timestamp) AS source_timestamp FROM commits
WHERE last_sequence > {lo} AND last_sequence <= {hi}

-- name: range_times
-- The source timestamps of a range's collections, of every stream and tenant: windows by arrival close at the first one
-- at or after their end.
SELECT DISTINCT source_timestamp FROM events
WHERE ingress_sequence > {lo} AND ingress_sequence <= {hi} ORDER BY source_timestamp

-- name: write_due
-- Stores when something is due, and tells those who wait for it, where that has changed.
WITH due AS (
    SELECT {window_due}::bigint AS window_due, {idle_due}::bigint AS idle_due
), changed AS (
    UPDATE fold_due SET window_due = due.window_due, idle_due = due.idle_due FROM due
    WHERE (fold_due.window_due, fold_due.idle_due) IS DISTINCT FROM (due.window_due, due.idle_due)
    RETURNING fold_due.only_row
)
SELECT pg_notify('tidelock_due', '') FROM changed
