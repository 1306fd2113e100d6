-- name: read_cursor
-- The sequence that a reader of the ledger is complete through; no row before its first.
SELECT sequence FROM cursors WHERE name = %s;

-- name: read_lag
-- Through which sequence a reader is complete (null before its first), how many numbers were left out up to there, and
-- for how many nanoseconds the oldest commit after it has waited (null when there is none).
SELECT sequence, coalesce((
    SELECT skipped FROM commits WHERE last_sequence <= sequence ORDER BY last_sequence DESC LIMIT 1
), 0), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 - (
    SELECT last_source_timestamp FROM commits
    WHERE last_sequence > coalesce(sequence, 0) ORDER BY last_sequence LIMIT 1
)
FROM (VALUES (true)) AS one LEFT JOIN cursors ON name = %s;
