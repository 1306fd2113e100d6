-- name: events
-- Events of so many customers, one after another, in collections of 1,000 and commits of 10,000, within one month.
INSERT INTO events (ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream,
    customer_ref, op, quantity, data, source, idempotency_key, key_source, content_hash)
SELECT i, (i - 1) / 10000 + 1, %(start)s::bigint + (i - 1) / 1000 * 1000000, %(start)s::bigint + i * 1000,
    %(start)s::bigint + i * 1000, 'acme', 'api_calls', 'cus_' || i %% %(customers)s::integer, 'upsert',
    ((hashint8(i + 1) & 65535) / 100.0)::numeric(12, 2), '{"region":"eu"}'::json, 'sdk', i::text, 'd', '\x00'::bytea
FROM generate_series(1, %(events)s::bigint) AS i;

-- name: corrections
-- Corrections of so many of the last events that are not corrected yet, every second one an amendment, in one commit.
INSERT INTO events (ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream,
    customer_ref, op, quantity, data, idempotency_key, key_source, content_hash, target, target_sequence)
SELECT head.ingress_sequence + number, head.commit_id + 1, head.source_timestamp + 1000000, head.source_timestamp,
    occurred_at, tenant_id, stream, customer_ref, CASE number %% 2 WHEN 0 THEN 'amend' ELSE 'void' END,
    CASE number %% 2 WHEN 0 THEN quantity + 1 END, CASE number %% 2 WHEN 0 THEN data END,
    'c' || target.ingress_sequence, 'd', '\x00'::bytea, idempotency_key, target.ingress_sequence
FROM ledger_head AS head, (
    SELECT *, row_number() OVER (ORDER BY it.ingress_sequence) AS number FROM events AS it
    WHERE op = 'upsert' AND NOT EXISTS (SELECT FROM corrections WHERE target_sequence = it.ingress_sequence)
    ORDER BY it.ingress_sequence DESC LIMIT %(count)s
) AS target;

-- name: corrected
-- What they correct.
INSERT INTO corrections (target_sequence, ingress_sequence)
SELECT target_sequence, ingress_sequence FROM events
WHERE ingress_sequence > (SELECT ingress_sequence FROM ledger_head);

-- name: commits
-- The commits of events that have none.
INSERT INTO commits (commit_id, first_sequence, last_sequence, last_source_timestamp, control, digest)
SELECT commit_id, min(ingress_sequence), max(ingress_sequence), max(source_timestamp), false, '\x00'::bytea
FROM events WHERE commit_id > (SELECT coalesce(max(commit_id), 0) FROM commits) GROUP BY commit_id;

-- name: head
-- The end of the ledger.
UPDATE ledger_head SET (ingress_sequence, commit_id, source_timestamp)
    = (SELECT max(last_sequence), max(commit_id), max(last_source_timestamp) FROM commits);

-- name: counted
-- What the counters are worth, and how many events they count.
SELECT coalesce(sum(value), 0)::numeric, coalesce(sum(total), 0)::numeric, coalesce(sum(agg_count), 0)::bigint,
    max(agg_max)::numeric, min(agg_min)::numeric
FROM tidelock_tables.counters;

-- name: left
-- What they should be: everything that is not corrected.
SELECT sum(quantity), sum(quantity), count(*), max(quantity), min(quantity) FROM events AS it
WHERE op <> 'void' AND NOT EXISTS (SELECT FROM corrections WHERE target_sequence = it.ingress_sequence);
