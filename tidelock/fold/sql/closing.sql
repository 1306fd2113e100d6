-- name: unstated
-- Counters in closed periods that no close has stated yet, in the order of keys and tenants, as changes are told.
CREATE TEMPORARY TABLE unstated ON COMMIT DROP AS
WITH bounds (metric, tenant_id, start) AS (VALUES {bounds})
SELECT it.tenant_id, it."$key", it.metric, it.customer_ref, it.period_start, it.value, it.total,
    it.agg_count + it.adj_count AS event_count
FROM {counters} AS it
JOIN bounds AS every ON every.metric = it.metric AND every.tenant_id = {all_tenants}
LEFT JOIN bounds AS own ON own.metric = it.metric AND own.tenant_id = it.tenant_id
WHERE it.period_start < greatest(every.start, own.start) AND {tenant} AND NOT EXISTS (
    SELECT FROM {statements} AS stated WHERE stated.tenant_id = it.tenant_id AND stated."$key" = it."$key"
)
ORDER BY it."$key", it.tenant_id

-- name: unstated_blocks
-- How many pages of Postgres they fill.
SELECT pg_relation_size('pg_temp.unstated') / current_setting('block_size')::bigint AS blocks

-- name: unstated_page
-- Some of them, by where they lie: in the order in which they were written.
SELECT tenant_id, "$key", metric, customer_ref, period_start, value::text AS value, total::text AS total, event_count
FROM pg_temp.unstated WHERE ctid >= '({first},0)'::tid AND ctid < '({end},0)'::tid

-- name: head
-- How far the ledger is: it moves while events are recorded.
SELECT ingress_sequence FROM ledger_head

-- name: one_worker
-- For this transaction: looking for a million counters takes one processor, and leaves the others to ingest.
SELECT set_config('max_parallel_workers_per_gather', '0', true)

-- name: open_since
-- Where the first period of each meter begins that has an open counter.
WITH bounds (metric, tenant_id, start) AS (VALUES {bounds})
SELECT it.metric, min(it.period_start) AS open_since
FROM {counters} AS it
JOIN bounds AS every ON every.metric = it.metric AND every.tenant_id = {all_tenants}
LEFT JOIN bounds AS own ON own.metric = it.metric AND own.tenant_id = it.tenant_id
WHERE it.period_start >= greatest(every.start, own.start) AND it.watermark_ts IS NOT NULL
GROUP BY it.metric

-- name: write_open_since
-- Stores when the first open period of meters is to be closed, and tells those who wait for it.
WITH told AS (
    INSERT INTO fold_closings (metric, open_since, close_due) VALUES {rows}
    ON CONFLICT (metric) DO UPDATE SET open_since = excluded.open_since, close_due = excluded.close_due
    RETURNING metric
)
SELECT pg_notify('tidelock_due', '') FROM told LIMIT 1
