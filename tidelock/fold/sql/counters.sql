-- Counters on Spark. A counter's stored row stands before the entries of the range, as sequence 0; all that follows
-- are running aggregates in sequence order. Keys are two hashes: sorting by four texts costs twice as much.

-- name: chained
-- Entries of the range and what is stored of their counters, in one shape.
SELECT {hint} * FROM (
SELECT
    xxhash64(meter, tenant_id, customer_ref, period_start) AS hash_1,
    xxhash64(customer_ref, period_start, tenant_id, meter) AS hash_2,
    meter, tenant_id, customer_ref, period_start, ingress_sequence, source_timestamp, occurred_at,
    {quantity} AS quantity,
    IF(quantity IS NULL, NULL, occurred_at) AS last_at, group_key, grouped,
    CAST(NULL AS STRUCT<agg_sum: {number}, agg_count: BIGINT, agg_max: {number}, agg_min: {number},
        agg_last: {number}, adj_sum: {number}, adj_count: BIGINT, adj_max: {number},
        adj_min: {number}>) AS stored
FROM entries
WHERE error IS NULL
UNION ALL
SELECT
    xxhash64(meter, tenant_id, customer_ref, period_start),
    xxhash64(customer_ref, period_start, tenant_id, meter),
    meter, tenant_id, customer_ref, period_start, 0, source_timestamp, watermark_ts, NULL, last_at, NULL, FALSE,
    named_struct('agg_sum', {stored_agg_sum}, 'agg_count', agg_count, 'agg_max', {stored_agg_max},
        'agg_min', {stored_agg_min}, 'agg_last', {stored_agg_last}, 'adj_sum', {stored_adj_sum}, 'adj_count', adj_count,
        'adj_max', {stored_adj_max}, 'adj_min', {stored_adj_min})
FROM stored_counters
)

-- name: decided
-- Which entries come too late: those further behind the latest before them than their meter allows. A late one never
-- raises that maximum, so one running maximum decides everything. What cannot be subtracted lies before all instants.
SELECT *, stored IS NULL AND COALESCE(occurred_at < try_subtract(
    max(occurred_at) OVER (PARTITION BY hash_1, hash_2 ORDER BY ingress_sequence
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), {lateness}), FALSE) AS late
FROM chained

-- name: counter_versions
-- Counters after every collection that touched them, and every adjustment (amount is not null). max_by keeps the later
-- of two equals, which is what `last` means.
SELECT meter, tenant_id, customer_ref, period_start, ingress_sequence, source_timestamp,
    source_timestamp IS DISTINCT FROM next_source_timestamp AS closing,
    agg_sum, agg_count, agg_max, agg_min, agg_last, watermark_ts, {value} AS value, total,
    last_at, adj_sum, adj_count, adj_max, adj_min,
    IF(late, quantity, NULL) AS quantity, IF(late, occurred_at, NULL) AS occurred_at,
    IF(late, {amount}, NULL) AS amount
FROM (
    SELECT *, lag(total) OVER (PARTITION BY hash_1, hash_2 ORDER BY ingress_sequence) AS previous_total
    FROM (
        SELECT *, {total} AS total
        FROM (
            SELECT hash_1, hash_2, meter, tenant_id, customer_ref, period_start, ingress_sequence, source_timestamp,
                occurred_at, quantity, late,
                lead(source_timestamp) OVER (PARTITION BY hash_1, hash_2 ORDER BY ingress_sequence)
                    AS next_source_timestamp,
                COALESCE(sum(COALESCE(stored.agg_sum, IF(late, NULL, quantity))) OVER running, {zero}) AS agg_sum,
                sum(COALESCE(stored.agg_count, IF(late, 0L, 1L))) OVER running AS agg_count,
                max(COALESCE(stored.agg_max, IF(late, NULL, quantity))) OVER running AS agg_max,
                min(COALESCE(stored.agg_min, IF(late, NULL, quantity))) OVER running AS agg_min,
                max_by(COALESCE(stored.agg_last, quantity), IF(late, NULL, last_at)) OVER running AS agg_last,
                max(IF(late, NULL, occurred_at)) OVER running AS watermark_ts,
                max(IF(late, NULL, last_at)) OVER running AS last_at,
                COALESCE(sum(COALESCE(stored.adj_sum, IF(late, quantity, NULL))) OVER running, {zero}) AS adj_sum,
                sum(COALESCE(stored.adj_count, IF(late, 1L, 0L))) OVER running AS adj_count,
                max(COALESCE(stored.adj_max, IF(late, quantity, NULL))) OVER running AS adj_max,
                min(COALESCE(stored.adj_min, IF(late, quantity, NULL))) OVER running AS adj_min
            FROM decided
            WINDOW running AS (PARTITION BY hash_1, hash_2 ORDER BY ingress_sequence
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
        )
    )
)
WHERE ingress_sequence > 0 AND (late OR source_timestamp IS DISTINCT FROM next_source_timestamp)

-- name: touched_groups
-- The groups that the range touches.
SELECT DISTINCT meter, tenant_id, customer_ref, period_start, group_key FROM entries WHERE error IS NULL AND grouped

-- name: grouped
-- Entries of groups with their counter's decision, after what is stored of the groups.
SELECT {hint} * FROM (
SELECT
    xxhash64(meter, tenant_id, customer_ref, period_start, group_key) AS hash_1,
    xxhash64(group_key, customer_ref, period_start, tenant_id, meter) AS hash_2,
    meter, tenant_id, customer_ref, period_start, group_key, ingress_sequence, source_timestamp, occurred_at, quantity,
    last_at, late, NULL AS adj_last_at,
    CAST(NULL AS STRUCT<agg_sum: DECIMAL(38,9), agg_count: BIGINT, agg_max: DECIMAL(38,9), agg_min: DECIMAL(38,9),
        agg_last: DECIMAL(38,9), adj_sum: DECIMAL(38,9), adj_count: BIGINT, adj_max: DECIMAL(38,9),
        adj_min: DECIMAL(38,9), adj_last: DECIMAL(38,9)>) AS stored
FROM decided
WHERE grouped
UNION ALL
SELECT
    xxhash64(meter, tenant_id, customer_ref, period_start, group_key),
    xxhash64(group_key, customer_ref, period_start, tenant_id, meter),
    meter, tenant_id, customer_ref, period_start, group_key, 0, source_timestamp, watermark_ts, NULL,
    last_at, FALSE, adj_last_at,
    named_struct('agg_sum', agg_sum, 'agg_count', agg_count, 'agg_max', agg_max, 'agg_min', agg_min,
        'agg_last', agg_last, 'adj_sum', adj_sum, 'adj_count', adj_count, 'adj_max', adj_max, 'adj_min', adj_min,
        'adj_last', adj_last)
FROM stored_groups
)

-- name: group_versions
-- Groups after every collection that touched them. Their last may be an adjusted event: an event may come too late for
-- the counter and still be the latest of its group.
SELECT meter, tenant_id, customer_ref, period_start, group_key, ingress_sequence,
    source_timestamp, agg_sum, agg_count, agg_max, agg_min, agg_last, watermark_ts, {value} AS value,
    {group_total} AS total, last_at, adj_sum, adj_count, adj_max, adj_min, adj_last, adj_last_at
FROM (
    SELECT hash_1, hash_2, meter, tenant_id, customer_ref, period_start, group_key, ingress_sequence, source_timestamp,
        lead(source_timestamp) OVER (PARTITION BY hash_1, hash_2 ORDER BY ingress_sequence) AS next_source_timestamp,
        COALESCE(sum(COALESCE(stored.agg_sum, IF(late, NULL, quantity))) OVER running, 0BD) AS agg_sum,
        sum(COALESCE(stored.agg_count, IF(late, 0L, 1L))) OVER running AS agg_count,
        max(COALESCE(stored.agg_max, IF(late, NULL, quantity))) OVER running AS agg_max,
        min(COALESCE(stored.agg_min, IF(late, NULL, quantity))) OVER running AS agg_min,
        max_by(COALESCE(stored.agg_last, quantity), IF(late, NULL, last_at)) OVER running AS agg_last,
        max(IF(late, NULL, occurred_at)) OVER running AS watermark_ts,
        max(IF(late, NULL, last_at)) OVER running AS last_at,
        COALESCE(sum(COALESCE(stored.adj_sum, IF(late, quantity, NULL))) OVER running, 0BD) AS adj_sum,
        sum(COALESCE(stored.adj_count, IF(late, 1L, 0L))) OVER running AS adj_count,
        max(COALESCE(stored.adj_max, IF(late, quantity, NULL))) OVER running AS adj_max,
        min(COALESCE(stored.adj_min, IF(late, quantity, NULL))) OVER running AS adj_min,
        max_by(COALESCE(stored.adj_last, quantity), COALESCE(adj_last_at, IF(late, last_at, NULL))) OVER running
            AS adj_last,
        max(COALESCE(adj_last_at, IF(late, last_at, NULL))) OVER running AS adj_last_at
    FROM grouped
    WINDOW running AS (PARTITION BY hash_1, hash_2 ORDER BY ingress_sequence
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
WHERE ingress_sequence > 0 AND source_timestamp IS DISTINCT FROM next_source_timestamp
