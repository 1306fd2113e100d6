-- name: raw_events
-- A page of recorded events in the bytes that were recorded and chained; bound on the client, COPY takes no parameters.
COPY (
    SELECT ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream, customer_ref,
        resource_id, row_key, op, quantity, data, causality_key, correlation_id, causation_id, source,
        idempotency_key, key_source, content_hash, target, target_sequence, reason, batch_id, row_digest
    FROM events WHERE ingress_sequence > %(after)d AND ingress_sequence <= %(through)d
    ORDER BY ingress_sequence LIMIT %(limit)d
) TO STDOUT (FORMAT BINARY);

-- name: commits
-- A page of commits.
SELECT commit_id, first_sequence, last_sequence, last_source_timestamp, control, digest, skipped, form
FROM commits WHERE commit_id > %s AND commit_id <= %s ORDER BY commit_id LIMIT %s;

-- name: differing_identities
-- Which of a page of events have no identity, or one that says something else: only differences travel. The page is
-- one text of bytes, 57 per event: digest, sequence, content hash, key source.
SELECT number, identity.ingress_sequence, identity.content_hash, identity.key_source
FROM generate_series(0, %(count)s - 1) AS number
LEFT JOIN identities AS identity ON identity.digest = substring(%(page)b, number * 57 + 1, 16)
WHERE int8send(identity.ingress_sequence) || identity.content_hash || charsend(identity.key_source)
    IS DISTINCT FROM substring(%(page)b, number * 57 + 17, 41)
ORDER BY number;

-- name: count_identities
-- How many identities belong to the ledger up to a sequence.
SELECT count(*) FROM identities WHERE ingress_sequence <= %s;

-- name: stray_identity
-- The first identity whose event is not there, or has no key.
SELECT identity.ingress_sequence, encode(identity.digest, 'hex') FROM identities AS identity
LEFT JOIN events AS event ON event.ingress_sequence = identity.ingress_sequence
WHERE identity.ingress_sequence <= %s AND event.idempotency_key IS NULL
ORDER BY identity.ingress_sequence LIMIT 1;

-- name: beyond_head
-- What lies beyond the head: one statement, so that a commit under way cannot look like it.
SELECT (SELECT min(ingress_sequence) FROM events WHERE ingress_sequence > head.ingress_sequence),
    (SELECT min(commit_id) FROM commits WHERE commit_id > head.commit_id)
FROM ledger_head AS head;

-- name: anchored_commits
-- The digests of some commits.
SELECT commit_id, last_sequence, digest FROM commits WHERE commit_id = ANY(%s);

-- name: noted_corrections
-- What these corrections correct, as noted beside them.
SELECT ingress_sequence, target_sequence FROM corrections WHERE ingress_sequence = ANY(%s);

-- name: count_corrections
-- How many corrections are noted up to a sequence.
SELECT count(*) FROM corrections WHERE ingress_sequence <= %s;

-- name: stray_correction
-- The first note whose event is not there, or corrects something else.
SELECT ingress_sequence, correction.target_sequence FROM corrections AS correction
LEFT JOIN events AS event USING (ingress_sequence)
WHERE ingress_sequence <= %s AND event.target_sequence IS DISTINCT FROM correction.target_sequence
ORDER BY ingress_sequence LIMIT 1;
