-- name: make_tables
-- What a dry run would record, and how far its counters would be; gone with the connection.
CREATE TEMPORARY TABLE dry_identities (LIKE identities INCLUDING INDEXES);
CREATE TEMPORARY TABLE dry_events (LIKE events);
CREATE TEMPORARY TABLE dry_corrections (LIKE corrections INCLUDING INDEXES);
CREATE TEMPORARY TABLE dry_targets (
    ingress_sequence bigint PRIMARY KEY, stream text COLLATE "C", customer_ref text COLLATE "C",
    resource_id text COLLATE "C", row_key text COLLATE "C", op text COLLATE "C", occurred_at bigint
);
CREATE TEMPORARY TABLE dry_counters (
    metric text COLLATE "C", tenant_id text COLLATE "C", customer_ref text COLLATE "C", period_start bigint,
    watermark_ts bigint NOT NULL, PRIMARY KEY (metric, tenant_id, customer_ref, period_start)
);

-- name: read_stand
-- The head, the clock, and whether there are counters yet.
SELECT ingress_sequence, commit_id, source_timestamp, digest, salts_version, skipped,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000, to_regclass(%s) IS NOT NULL
FROM ledger_head;

-- name: known_from_file
-- Which of these identities, 16 bytes each in one text, earlier rounds would have recorded, and with what content.
SELECT known.digest, ingress_sequence, content_hash, key_source
FROM generate_series(1, length(%(digests)b), 16) AS start
JOIN pg_temp.dry_identities AS known ON known.digest = substr(%(digests)b, start, 16);

-- name: targets_from_file
-- The events of earlier rounds with these identities, 16 bytes each in one text. Their quantities and data decide
-- nothing here.
SELECT known.digest, target.*, NULL::text AS quantity, NULL::bigint AS corrected_by
FROM generate_series(1, length(%(digests)b), 16) AS start
JOIN pg_temp.dry_identities AS known ON known.digest = substr(%(digests)b, start, 16)
JOIN pg_temp.dry_targets AS target ON target.ingress_sequence = known.ingress_sequence;

-- name: corrected_by_file
-- What earlier rounds would have corrected of these events, and by which of theirs.
SELECT target_sequence, ingress_sequence FROM pg_temp.dry_corrections WHERE target_sequence = ANY(%s);

-- name: forget_round
-- The events of a round are needed until the next one; of those that may be corrected, what decides that.
INSERT INTO pg_temp.dry_targets
SELECT ingress_sequence, stream, customer_ref, resource_id, row_key, op, occurred_at FROM pg_temp.dry_events
WHERE idempotency_key IS NOT NULL;
TRUNCATE pg_temp.dry_events;

-- name: judge_round
-- How many of a round's events but corrections come too late for their counters of one meter, and for how many the
-- period is closed, which says it alone; remembers how far the counters are. A late event never raises the maximum, as in the fold. Instants and lateness are subtracted as numerics: bigint ends near the last.
WITH closed AS (
    SELECT tenant_id, open_from FROM unnest({tenants}::text[], {opens}::bigint[]) AS close (tenant_id, open_from)
), counted AS MATERIALIZED (
    SELECT event.tenant_id, event.customer_ref, {start} AS period_start, judged.occurred_at, ingress_sequence
    FROM ({judged}) AS judged JOIN pg_temp.dry_events AS event USING (ingress_sequence)
    WHERE aside IS NULL AND event.target_sequence IS NULL
), reached AS (
    SELECT tenant_id, customer_ref, period_start, greatest(stored.watermark_ts, dry.watermark_ts) AS watermark_ts
    FROM (SELECT DISTINCT tenant_id, customer_ref, period_start FROM counted) AS counter
    LEFT JOIN (SELECT * FROM {counters} WHERE metric = {metric}) AS stored USING (tenant_id, customer_ref, period_start)
    LEFT JOIN (SELECT * FROM pg_temp.dry_counters WHERE metric = {metric}) AS dry
        USING (tenant_id, customer_ref, period_start)
), decided AS (
    SELECT counted.*, counted.occurred_at < greatest(watermark_ts, max(occurred_at) OVER before)
        - {lateness}::numeric AS late,
        period_start < (
            SELECT max(open_from) FROM closed WHERE closed.tenant_id IN (counted.tenant_id, {all_tenants})
        ) AS closed
    FROM counted JOIN reached USING (tenant_id, customer_ref, period_start)
    WINDOW before AS (PARTITION BY tenant_id, customer_ref, period_start ORDER BY ingress_sequence
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), moved AS (
    INSERT INTO pg_temp.dry_counters
    SELECT {metric}, tenant_id, customer_ref, period_start, max(occurred_at) FROM counted GROUP BY 2, 3, 4
    ON CONFLICT (metric, tenant_id, customer_ref, period_start)
    DO UPDATE SET watermark_ts = greatest(dry_counters.watermark_ts, excluded.watermark_ts)
)
SELECT count(*) FILTER (WHERE late AND closed IS NOT TRUE), count(*) FILTER (WHERE closed) FROM decided;
