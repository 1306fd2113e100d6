-- name: due
-- The moments that the fold waits for, and the source timestamp of the last tick where that matters. Control commits
-- are looked at from the last one backwards: the last tick is among the first few, or there are only few at all.
SELECT window_due, idle_due, CASE WHEN idle_due IS NULL THEN 0 ELSE coalesce((
    SELECT event.source_timestamp
    FROM commits JOIN events AS event ON event.ingress_sequence = commits.first_sequence
    WHERE commits.control AND event.data ->> 'type' = 'tick'
    ORDER BY commits.first_sequence DESC LIMIT 1
), 0) END
FROM fold_due;

-- name: outlook
-- Where the ledger's time stands: the head's source timestamp, and the clock.
SELECT source_timestamp, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 FROM ledger_head;
