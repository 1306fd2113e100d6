-- name: partitions
-- The partitions of the events and their size, those of numbered ranges first.
SELECT relname, pg_total_relation_size(pg_class.oid)
FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = 'events'::regclass
ORDER BY nullif(split_part(relname, '_', 2), 'default')::bigint NULLS LAST;

-- name: identities
-- About how many identities there are, and their size: counted while they are few, else by the pages they fill.
SELECT CASE
        WHEN pg_relation_size(oid) < 1048576 THEN (SELECT count(*) FROM identities)
        WHEN relpages > 0 AND reltuples > 0 THEN (pg_relation_size(oid) / 8192 * (reltuples / relpages))::bigint
        ELSE pg_relation_size(oid) / 8192 * 81
    END, pg_total_relation_size(oid)
FROM pg_class WHERE oid = 'identities'::regclass;

-- name: counts
-- What is small enough to count.
SELECT (SELECT count(*) FROM salts), (SELECT count(*) FROM api_keys WHERE revoked_at IS NULL),
    (SELECT count(*) FROM api_keys WHERE revoked_at IS NOT NULL);

-- name: cursors
-- Through which sequence each reader is complete, how many numbers were left out up to there, and for how many
-- nanoseconds the oldest commit behind it has waited (null when there is none).
SELECT name, sequence, coalesce((
    SELECT skipped FROM commits WHERE last_sequence <= sequence ORDER BY last_sequence DESC LIMIT 1
), 0), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 - (
    SELECT last_source_timestamp FROM commits WHERE last_sequence > sequence ORDER BY last_sequence LIMIT 1
)
FROM cursors ORDER BY name;
