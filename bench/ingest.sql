-- name: lock_head
-- The same first statement as a commit of ours.
SELECT 1 FROM ledger_head FOR UPDATE;

-- name: move_head
-- Puts the head behind rows that were copied past the sequencer.
UPDATE ledger_head SET ingress_sequence = %s, commit_id = %s;

-- name: grow_events
-- Events for their weight.
INSERT INTO events (ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream,
    customer_ref, op, quantity, data, source, idempotency_key, key_source, content_hash)
SELECT i, i / 1000 + 1, i, i, i * 1000000, 'acme', 'api_calls', 'cus_' || i %% 10000, 'upsert', 1.5,
    ('{"region":"eu","path":"/v1/things","status":200,"ms":' || i %% 977 || '}')::json, 'sdk',
    encode(sha256(int8send(i)), 'base64'), 'd', sha256(int8send(i))
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS i;

-- name: grow_identities
-- Their identities, scattered over the index as digests are.
INSERT INTO identities (digest, ingress_sequence, content_hash, key_source)
SELECT substr(sha256(int8send(i)), 1, 16), i, sha256(int8send(i)), 'd'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS i;
