-- name: lock_head
-- Opens the transaction of a commit. The lock is a statement of its own, so that everything after it sees what the
-- previous holder committed; the clock is read after it, so that time does not go back while waiting.
BEGIN;
SELECT ingress_sequence, commit_id, source_timestamp, digest, salts_version, skipped FROM ledger_head FOR UPDATE;
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000;

-- name: known_identities
-- Which of these identities, 16 bytes each in one text, are recorded, and with what content. One long value costs
-- the client a tenth of an array.
SELECT identities.digest, ingress_sequence, content_hash, key_source
FROM generate_series(1, length(%(digests)b), 16) AS start
JOIN identities ON identities.digest = substr(%(digests)b, start, 16);

-- name: finish_commit
-- Chains the commit, moves the head, wakes the readers and makes it durable; bound on the client, one round trip.
INSERT INTO commits (commit_id, first_sequence, last_sequence, last_source_timestamp, control, digest, skipped, form)
    VALUES (%(commit_id)s, %(first)s, %(last)s, %(source_timestamp)s, %(control)s, %(digest)s, %(skipped)s, %(form)s);
UPDATE ledger_head SET ingress_sequence = %(last)s, commit_id = %(commit_id)s,
    source_timestamp = %(source_timestamp)s, digest = %(digest)s, skipped = %(skipped)s, sequence_source = %(source)s,
    sequence_since = CASE sequence_source WHEN %(source)s THEN sequence_since ELSE %(source_timestamp)s END;
SELECT pg_notify('tidelock_ledger', %(last)s::text);
COMMIT;

-- name: keep_synchronous
-- Makes commits of this session durable where the server's default would not.
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local');

-- name: read_head
-- The head of the ledger.
SELECT ingress_sequence, commit_id, source_timestamp, digest, salts_version, skipped FROM ledger_head;

-- name: read_originals
-- Recorded events by sequence, to compare their content.
SELECT ingress_sequence, tenant_id, stream, customer_ref, resource_id, row_key, op, occurred_at, received_at,
    quantity::text, data::text, causality_key, correlation_id, causation_id, source, idempotency_key, key_source,
    content_hash, target
FROM events WHERE ingress_sequence = ANY(%s);

-- name: read_targets
-- The events with these identities, 16 bytes each in one text, and what corrected them.
SELECT identities.digest, events.ingress_sequence, stream, customer_ref, resource_id, row_key, op, occurred_at,
    quantity::text, corrections.ingress_sequence
FROM generate_series(1, length(%(digests)b), 16) AS start
JOIN identities ON identities.digest = substr(%(digests)b, start, 16)
JOIN events ON events.ingress_sequence = identities.ingress_sequence
LEFT JOIN corrections ON corrections.target_sequence = identities.ingress_sequence;

-- name: read_target_data
-- Data that amendments leave as it is.
SELECT ingress_sequence, data::text FROM events WHERE ingress_sequence = ANY(%s) AND data IS NOT NULL;

-- name: ensure_partition
-- Makes the partition that holds a sequence, unless it is there.
SELECT ensure_events_partition(%s, %s);

-- name: sequence_source
-- Where the last commit had its numbers from, since which source timestamp, and how many were left out so far.
SELECT sequence_source, sequence_since, skipped FROM ledger_head;

-- name: events_start
-- The first sequence that is recorded after another one: numbers in between were left out.
SELECT first_sequence FROM commits WHERE first_sequence > %s ORDER BY first_sequence LIMIT 1;

-- name: find_originals
-- The sequences of recorded identities.
SELECT digest, ingress_sequence FROM identities WHERE digest = ANY(%s);
