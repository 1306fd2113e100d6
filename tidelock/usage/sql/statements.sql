-- name: since
-- By how much counters have moved since they were stated: their total, and their value, which only another definition of
-- the meter moves.
SELECT asked.number, trim_scale(coalesce(now.total, 0) - coalesce(stated.total, 0))::text,
    trim_scale(coalesce(now.value, 0) - coalesce(stated.value, 0))::text
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS asked (tenant_id, key, number)
JOIN tidelock_tables.statements AS stated ON stated.tenant_id = asked.tenant_id AND stated."$key" = asked.key
LEFT JOIN tidelock_tables.counters AS now ON now.tenant_id = asked.tenant_id AND now."$key" = asked.key;

-- name: adjustments
-- What came for stated counters after their close: a number of adjustments of each, in order, and their count.
SELECT asked.number, found.*
FROM unnest(%(tenants)s::text[], %(metrics)s::text[], %(customers)s::text[], %(starts)s::bigint[], %(closed)s::bigint[])
    WITH ORDINALITY AS asked (tenant_id, metric, customer_ref, period_start, closed_sequence, number)
CROSS JOIN LATERAL (
    SELECT count(*) OVER () AS count, ingress_sequence, trim_scale(quantity)::text AS quantity,
        trim_scale(amount)::text AS amount, reason, occurred_at
    FROM tidelock_tables.adjustments AS it
    WHERE it.tenant_id = asked.tenant_id AND it.metric = asked.metric AND it.customer_ref = asked.customer_ref
        AND it.period_start = asked.period_start AND it.ingress_sequence > asked.closed_sequence
    ORDER BY ingress_sequence LIMIT %(limit)s
) AS found
ORDER BY asked.number, found.ingress_sequence;
