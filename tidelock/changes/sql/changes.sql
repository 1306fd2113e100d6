-- name: pruned
-- Changes through this source timestamp may be gone.
SELECT source_timestamp FROM changes_pruned;

-- name: range_after_time
-- The first range with changes after a source timestamp: its end, and how many parts each table and lane has in it. Ranges
-- follow each other in time as in sequence, so the first part by time is of the first range.
WITH next AS (
    SELECT last_sequence FROM changes
    WHERE last_source_timestamp > %(after)s AND (%(tables)s::text[] IS NULL OR table_name = ANY(%(tables)s))
    ORDER BY last_source_timestamp LIMIT 1
)
SELECT (SELECT source_timestamp FROM changes_pruned), next.last_sequence, table_name, lane, count(*),
    max(last_source_timestamp)
FROM (VALUES (true)) AS one LEFT JOIN next ON true
LEFT JOIN changes
    ON changes.last_sequence = next.last_sequence AND (%(tables)s::text[] IS NULL OR table_name = ANY(%(tables)s))
GROUP BY next.last_sequence, table_name, lane
ORDER BY table_name, lane;

-- name: range_after_sequence
-- The same for the first range that ends after a sequence of the ledger.
WITH next AS (
    SELECT last_sequence FROM changes
    WHERE last_sequence > %(after)s AND (%(tables)s::text[] IS NULL OR table_name = ANY(%(tables)s))
    ORDER BY last_sequence LIMIT 1
)
SELECT (SELECT source_timestamp FROM changes_pruned), next.last_sequence, table_name, lane, count(*),
    max(last_source_timestamp)
FROM (VALUES (true)) AS one LEFT JOIN next ON true
LEFT JOIN changes
    ON changes.last_sequence = next.last_sequence AND (%(tables)s::text[] IS NULL OR table_name = ANY(%(tables)s))
GROUP BY next.last_sequence, table_name, lane
ORDER BY table_name, lane;

-- name: segment
-- One part of a table's changes in a range and lane.
SELECT segment FROM changes WHERE last_sequence = %s AND table_name = %s AND lane = %s AND part = %s;

-- name: time_of_sequence
-- Source timestamp of the commit that a reader is complete through; 0 at the very beginning.
SELECT coalesce((
    SELECT last_source_timestamp FROM commits WHERE last_sequence <= %s ORDER BY last_sequence DESC LIMIT 1
), 0);

-- name: prune
-- Removes some of the oldest ranges that are older than the retention and that every durable reader has read, and
-- remembers through when. Readers of the ledger that make changes, not read them, do not count. From the oldest on and
-- not past the first recent one: what is left has no gap, even when the clock was set back.
WITH oldest AS (
    SELECT last_sequence, recorded_at < now() - %(retention_us)s * interval '1 microsecond' AS old FROM changes
    WHERE last_sequence <= %(keep_after)s AND last_sequence <= coalesce((
        SELECT min(sequence) FROM cursors WHERE name <> 'fold' AND name NOT LIKE 'fold:%%'
    ), %(keep_after)s)
    ORDER BY last_sequence LIMIT %(limit)s
), gone AS (
    DELETE FROM changes
    WHERE last_sequence <= (SELECT max(last_sequence) FROM oldest WHERE old)
        AND last_sequence < coalesce((SELECT min(last_sequence) FROM oldest WHERE NOT old), %(keep_after)s + 1)
    RETURNING last_source_timestamp
), remembered AS (
    UPDATE changes_pruned SET source_timestamp = greatest(source_timestamp, last)
    FROM (SELECT max(last_source_timestamp) AS last FROM gone) AS newest WHERE last IS NOT NULL
)
SELECT count(*) FROM gone;

-- name: before_last
-- A source timestamp after which a table has at least its last so many changes, and not many more. Parts count from
-- the one that begins last: lanes of a range overlap in time.
SELECT coalesce(min(first_source_timestamp) - 1, 0) FROM (
    SELECT first_source_timestamp, sum(rows) OVER (
        ORDER BY last_sequence DESC, first_source_timestamp DESC, part DESC, lane DESC
    ) - rows AS later
    FROM changes WHERE table_name = %s
) AS parts
WHERE later < %s;
