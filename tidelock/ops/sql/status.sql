-- name: partitions
-- The partitions of the events and their size, those of numbered ranges first.
SELECT relname, pg_total_relation_size(pg_class.oid)
FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = 'events'::regclass
ORDER BY nullif(split_part(relname, '_', 2), 'default')::bigint NULLS LAST;

-- name: identities
-- The size of the identities, and about how many they are: rows of a page by the statistics, else by their length.
SELECT (pg_relation_size(oid) / 8192 * CASE WHEN relpages > 0 AND reltuples > 0 THEN reltuples / relpages ELSE 81 END)
    ::bigint, pg_total_relation_size(oid)
FROM pg_class WHERE oid = 'identities'::regclass;

-- name: counts
-- What is small enough to count.
SELECT (SELECT count(*) FROM salts), (SELECT count(*) FROM api_keys WHERE revoked_at IS NULL),
    (SELECT count(*) FROM api_keys WHERE revoked_at IS NOT NULL);

-- name: cursors
-- Through which sequence each reader is complete.
SELECT name, sequence FROM cursors ORDER BY name;
