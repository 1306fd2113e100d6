-- name: standing
-- What the next close depends on, of one moment: by which definitions the tables are made, what is closed of them, when
-- periods are due, and the closes and definitions that the fold has yet to come to. Control commits are few.
SELECT definitions::text, (
    SELECT coalesce(json_agg(json_build_array(metric, tenant_id, through, closed_sequence)), '[]')::text
    FROM (
        SELECT DISTINCT ON (metric, tenant_id) metric, tenant_id, through, closed_sequence
        FROM tidelock_tables."meters$closed" ORDER BY metric, tenant_id, through DESC
    ) AS last
), (
    SELECT coalesce(json_agg(json_build_array(metric, open_since)), '[]')::text
    FROM fold_closings WHERE open_since IS NOT NULL
), (
    SELECT coalesce(json_agg(json_build_array(first_sequence, data) ORDER BY first_sequence), '[]')::text
    FROM commits JOIN events ON ingress_sequence = first_sequence
    WHERE control AND first_sequence > coalesce((SELECT sequence FROM cursors WHERE name = 'fold'), 0)
        AND data ->> 'type' IN ('close', 'definition')
)
FROM fold_definitions;

-- name: tenant_exists
-- Whether an event was ever recorded for a tenant. Control events have a tenant of their own, which nobody bills.
SELECT EXISTS (SELECT FROM events WHERE tenant_id = %s AND tenant_id <> '_tidelock');

-- name: open_periods
-- The periods with counters of a tenant, by meter, with how many there are that have folded something, and how many in
-- all: one that began after a close has folded nothing.
SELECT metric, period_start, count(watermark_ts), count(*) FROM tidelock_tables.counters
WHERE tenant_id = %s AND (%s::text IS NULL OR metric = %s)
GROUP BY metric, period_start ORDER BY metric, period_start;
