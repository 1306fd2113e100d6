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

-- name: windows
-- How far time has come for each window and tenant. By arrival, where no watermark is stored, it has come to the last
-- event that is folded.
SELECT "window", tenant_id, coalesce(watermark, (
        SELECT last_source_timestamp FROM commits
        WHERE last_sequence <= (SELECT sequence FROM cursors WHERE name = 'fold') ORDER BY last_sequence DESC LIMIT 1
    )), closed_through, buffer_size, late_dropped_count, watermark_emitted_count, max_timestamp_seen
FROM tidelock_tables.watermarks
WHERE (%(tenant_id)s::text IS NULL OR tenant_id = %(tenant_id)s)
    AND (%(window)s::text IS NULL OR "window" = %(window)s)
ORDER BY tenant_id, "$key" LIMIT %(limit)s;
