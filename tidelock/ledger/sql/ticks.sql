-- name: due
-- The moments that the fold waits for, and the source timestamp of the last tick where that matters. Control commits
-- are looked at from the last one backwards: the last tick is among the first few, or there are only few at all. OFFSET
-- keeps the planner from going backwards through all events instead.
SELECT window_due, idle_due, CASE WHEN idle_due IS NULL THEN 0 ELSE coalesce((
    SELECT ticked_at FROM (
        SELECT (
            SELECT source_timestamp FROM events WHERE ingress_sequence = first_sequence AND data ->> 'type' = 'tick'
        ) AS ticked_at
        FROM commits WHERE control ORDER BY first_sequence DESC OFFSET 0
    ) AS controls
    WHERE ticked_at IS NOT NULL LIMIT 1
), 0) END, (SELECT min(close_due) FROM fold_closings)
FROM fold_due;

-- name: outlook
-- The ledger's time: the head's source timestamp, and the clock.
SELECT source_timestamp, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 FROM ledger_head;
