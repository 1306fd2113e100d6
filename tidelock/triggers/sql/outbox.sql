-- name: lock_order
-- Lets one at a time append, until its transaction ends: readers count on positions becoming visible in their order.
SELECT pg_advisory_xact_lock(%(lock)s::bigint);

-- name: append
-- Puts transitions into the outbox, in the order given; those that are there already are left as they are.
INSERT INTO outbox (trigger_id, tenant_id, key, shard, event_id, event_type, source_timestamp, data)
SELECT trigger_id, tenant_id, key, shard, event_id, event_type, source_timestamp, data
FROM ROWS FROM (
    json_to_recordset(%(transitions)s::json) AS (
        trigger_id bigint, tenant_id text, key text, shard smallint, event_id text, event_type text,
        source_timestamp bigint, data json
    )
) WITH ORDINALITY AS given
    (trigger_id, tenant_id, key, shard, event_id, event_type, source_timestamp, data, number)
ORDER BY number
ON CONFLICT (event_id) DO NOTHING;

-- name: tell
-- Wakes those who deliver, once the transaction is committed.
SELECT pg_notify('tidelock_outbox', trigger_id::text) FROM unnest(%(trigger_ids)s::bigint[]) AS told (trigger_id);
