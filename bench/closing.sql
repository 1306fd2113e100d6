-- name: cursor
-- A fold that has come to nothing yet.
INSERT INTO cursors (name, sequence) VALUES ('fold', 0) ON CONFLICT DO NOTHING;

-- name: counters
-- Counters of so many customers in one month, as the fold keeps them.
INSERT INTO tidelock_tables.counters (
    tenant_id, "$key", metric, customer_ref, period_start, agg_sum, agg_count, agg_max, agg_min, agg_last, watermark_ts,
    value, total, source_timestamp, last_at, adj_sum, adj_count
)
SELECT 'default', '["calls","customer_' || n || '","2026-03-01T00:00:00Z"]', 'calls', 'customer_' || n, %(start)s,
    n, 3, n, 1, 2, %(start)s + n, n, n, 1, %(start)s + n, 0, 0
FROM generate_series(1, %(counters)s) AS n ORDER BY ('customer_' || n) COLLATE "C";

-- name: stated
-- How many statements there are, and how many were told as changes.
SELECT (SELECT count(*) FROM tidelock_tables.statements),
    (SELECT sum(rows)::bigint FROM changes WHERE table_name = 'statements');
