-- name: batches
-- A page of batches, the latest first: names are looked up one by one in their index, and only those of the page are
-- counted. A batch of several tenants has a row for each.
WITH RECURSIVE names AS (
    (SELECT batch_id FROM events WHERE batch_id IS NOT NULL ORDER BY batch_id LIMIT 1)
    UNION ALL
    SELECT (SELECT batch_id FROM events WHERE batch_id > names.batch_id ORDER BY batch_id LIMIT 1)
    FROM names WHERE names.batch_id IS NOT NULL
), latest AS (
    SELECT batch_id, (
        SELECT ingress_sequence FROM events WHERE events.batch_id = names.batch_id ORDER BY ingress_sequence DESC LIMIT 1
    ) AS last_sequence
    FROM names WHERE batch_id IS NOT NULL AND (%(batch)s::text IS NULL OR batch_id = %(batch)s)
), page AS (
    SELECT * FROM latest WHERE %(before)s::bigint IS NULL OR last_sequence < %(before)s
    ORDER BY last_sequence DESC LIMIT %(limit)s
)
SELECT page.last_sequence, page.batch_id, counted.*
FROM page LEFT JOIN LATERAL (
    SELECT tenant_id, count(*), count(*) FILTER (WHERE op IN ('void', 'amend')),
        count(corrections.ingress_sequence), min(events.ingress_sequence), max(events.ingress_sequence),
        min(occurred_at), max(occurred_at), min(received_at), array_agg(DISTINCT stream)
    FROM events LEFT JOIN corrections ON corrections.target_sequence = events.ingress_sequence
    WHERE events.batch_id = page.batch_id AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
    GROUP BY tenant_id
) AS counted ON true
ORDER BY page.last_sequence DESC, tenant_id;

-- name: batch_size
-- How many events a batch has, the last of them, and how many tenants have it, with the first and last name of those.
SELECT count(*), max(ingress_sequence), count(DISTINCT tenant_id), min(tenant_id), max(tenant_id) FROM events
WHERE batch_id = %(batch)s AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s);

-- name: events
-- A page of a batch's events, in order, each with the end of its corrections: an event that is corrected is corrected by
-- one, which may be corrected in its turn. A correction comes with whether what it corrects, in the end, is of the batch.
WITH RECURSIVE page AS (
    SELECT ingress_sequence, tenant_id, stream, op, idempotency_key, row_key, target_sequence FROM events
    WHERE batch_id = %(batch)s AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
        AND ingress_sequence > %(after)s AND ingress_sequence <= %(through)s
    ORDER BY ingress_sequence LIMIT %(limit)s
), later (root, at) AS (
    SELECT page.ingress_sequence, corrections.ingress_sequence
    FROM page JOIN corrections ON corrections.target_sequence = page.ingress_sequence
    WHERE op NOT IN ('void', 'amend')
    UNION ALL
    SELECT root, corrections.ingress_sequence FROM later JOIN corrections ON corrections.target_sequence = at
), earlier (correction, at) AS (
    SELECT ingress_sequence, target_sequence FROM page WHERE target_sequence IS NOT NULL
    UNION ALL
    SELECT correction, corrections.target_sequence FROM earlier JOIN corrections ON corrections.ingress_sequence = at
)
SELECT page.ingress_sequence, page.tenant_id, page.stream, page.op, page.idempotency_key, page.row_key IS NOT NULL,
    final.ingress_sequence, final.op, final.idempotency_key, final.batch_id IS NOT DISTINCT FROM %(batch)s,
    root.batch_id IS NOT DISTINCT FROM %(batch)s
FROM page
LEFT JOIN (SELECT root, max(at) AS at FROM later GROUP BY root) AS end_of ON end_of.root = page.ingress_sequence
LEFT JOIN events AS final ON final.ingress_sequence = end_of.at
LEFT JOIN (SELECT correction, min(at) AS at FROM earlier GROUP BY correction) AS began
    ON began.correction = page.ingress_sequence
LEFT JOIN events AS root ON root.ingress_sequence = began.at
ORDER BY page.ingress_sequence;

-- name: closed
-- The end through which the fold has closed a meter, by tenant, or for all of them (*).
SELECT tenant_id, max(through) FROM tidelock_tables."meters$closed" WHERE metric = %(metric)s GROUP BY tenant_id;
