-- name: messages
-- Events as Kafka gets them: what a message is made of, and last the members of its value that need no clock. Postgres
-- writes those, because it works beside Python; the text of `data` stays what was sent.
SELECT ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, events.stream,
    coalesce(causality_key, row_key), idempotency_key, convert_to(row_to_json(member)::text, 'UTF8')
FROM events CROSS JOIN LATERAL (
    SELECT tenant_id AS "tenantId", events.stream, customer_ref AS "customerRef", resource_id AS "resourceId",
        trim_scale(events.quantity)::text AS quantity, events.data, events.op, causality_key AS "causalityKey",
        correlation_id AS "correlationId", causation_id AS "causationId", idempotency_key AS "idempotencyKey",
        CASE key_source WHEN 'c' THEN 'client' WHEN 'd' THEN 'derived' ELSE 'none' END AS "keySource", events.source,
        events.target, target_sequence AS "targetSequence", reason, batch_id AS "batchId"
) AS member;

-- name: digests
-- Where some commits end, and their digests in hexadecimal digits.
SELECT commit_id, last_sequence, encode(digest, 'hex')::bytea FROM commits WHERE commit_id BETWEEN %s AND %s;
