-- A ledger for the fold to work on, made inside the database: seconds for millions of events. Its chain is not kept.

-- name: events
-- Collections of 1,000 in commits of 10,000. Events come one after another, each so much behind its time, some far.
INSERT INTO events (ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream,
    customer_ref, op, quantity, data, source, idempotency_key, key_source, content_hash)
SELECT i, (i - 1) / 10000 + 1, %(start)s::bigint + (i - 1) / 1000 * 1000000, %(start)s::bigint + i * %(step)s::bigint,
    %(start)s::bigint + i * %(step)s::bigint - (hashint8(i + 2) & 2147483647) %% %(disorder)s::bigint
        - CASE WHEN i %% %(far_every)s::bigint = 0 THEN %(far_behind)s::bigint ELSE 0 END,
    'acme', 'api_calls', 'cus_' || (hashint8(i) & 2147483647) %% %(customers)s::integer, 'upsert',
    ((hashint8(i + 1) & 65535) / 100.0)::numeric(12, 2),
    ('{"region":"eu","path":"/v1/things","status":200,"ms":' || i %% 977 || '}')::json, 'sdk',
    i::text, 'd', '\x00'::bytea
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS i;

-- name: commits
-- The commits of all of them.
INSERT INTO commits (commit_id, first_sequence, last_sequence, last_source_timestamp, control, digest)
SELECT commit_id, min(ingress_sequence), max(ingress_sequence), max(source_timestamp), false, '\x00'::bytea
FROM events GROUP BY commit_id;

-- name: another
-- An event like the last one, a second later.
INSERT INTO events (ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream,
    customer_ref, op, quantity, data, source, idempotency_key, key_source, content_hash)
SELECT ingress_sequence + 1, commit_id + 1, source_timestamp + 1000000000, received_at + 1000000000,
    occurred_at + 1000000000, tenant_id, stream, customer_ref, op, quantity, data, source,
    (ingress_sequence + 1)::text, key_source, content_hash
FROM events ORDER BY ingress_sequence DESC LIMIT 1;

-- name: another_commit
-- Its commit.
INSERT INTO commits (commit_id, first_sequence, last_sequence, last_source_timestamp, control, digest)
SELECT commit_id, ingress_sequence, ingress_sequence, source_timestamp, false, '\x00'::bytea
FROM events ORDER BY ingress_sequence DESC LIMIT 1;

-- name: head
-- The end of the ledger.
UPDATE ledger_head SET (ingress_sequence, commit_id, source_timestamp)
    = (SELECT max(last_sequence), max(commit_id), max(last_source_timestamp) FROM commits);

-- name: forget
-- As if nothing had been folded.
TRUNCATE tidelock_tables.counters, tidelock_tables.counter_groups, tidelock_tables.adjustments,
    tidelock_tables.error_rows, tidelock_tables.late_rows, tidelock_tables.watermarks, changes;

-- name: forget_cursor
-- The same of the cursor.
DELETE FROM cursors WHERE name = 'fold';

-- name: counted
-- What the tables count, and how many counters and adjustments that are.
SELECT coalesce(sum(agg_count + adj_count), 0)::bigint, count(*),
    (SELECT count(*) FROM tidelock_tables.adjustments), coalesce(sum(total), 0)::numeric
FROM tidelock_tables.counters;

-- name: quantities
-- What they should.
SELECT count(*), sum(quantity) FROM events;

-- name: changes
-- How many changes were recorded, and their bytes.
SELECT coalesce(sum(rows), 0)::bigint, coalesce(sum(octet_length(segment)), 0)::bigint FROM changes;
