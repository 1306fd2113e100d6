-- name: first_corrections
-- The first correction of the ledger, and the first of a range; null where there is none.
SELECT
    (SELECT min(ingress_sequence) FROM corrections WHERE ingress_sequence <= {hi}) AS ever,
    (SELECT min(ingress_sequence) FROM corrections WHERE ingress_sequence > {lo} AND ingress_sequence <= {hi}) AS here

-- name: corrections
-- The corrections of a range, in order.
SELECT ingress_sequence, it.target_sequence, op = 'void' AS voids, source_timestamp, tenant_id, stream, customer_ref,
    occurred_at
FROM corrections AS it JOIN events USING (ingress_sequence)
WHERE ingress_sequence > {lo} AND ingress_sequence <= {hi} ORDER BY ingress_sequence

-- name: slices
-- The events of customers within some time, through a sequence, each with what has corrected it. Slice by slice along
-- the index: of a ledger that is just being written Postgres may believe that a scan of all is shorter.
SELECT it.*, corrections.ingress_sequence AS corrected_by
FROM (VALUES {wanted}) AS wanted (number, tenant_id, stream, customer_ref, begins, ends)
CROSS JOIN LATERAL (
    SELECT * FROM events
    WHERE events.tenant_id = wanted.tenant_id AND events.stream = wanted.stream
        AND events.customer_ref = wanted.customer_ref AND occurred_at >= begins AND occurred_at < ends
        AND ingress_sequence <= {lo} AND op NOT IN ('void', 'delete')
    OFFSET 0
) AS it
LEFT JOIN corrections ON corrections.target_sequence = it.ingress_sequence

-- name: slice_sizes
-- How many events each slice has, those that came later too: the index alone knows.
SELECT (
    SELECT count(*) FROM events
    WHERE events.tenant_id = wanted.tenant_id AND events.stream = wanted.stream
        AND events.customer_ref = wanted.customer_ref AND occurred_at >= begins AND occurred_at < ends
) AS events
FROM (VALUES {wanted}) AS wanted (number, tenant_id, stream, customer_ref, begins, ends) ORDER BY number

-- name: adjusted
-- The adjustments of some customers' counters of some meters.
SELECT it.metric, it.ingress_sequence
FROM (VALUES {wanted}) AS wanted (number, tenant_id, metric, customer_ref, begins, ends)
CROSS JOIN LATERAL (
    SELECT * FROM {adjustments} AS own
    WHERE own.tenant_id = wanted.tenant_id AND own.metric = wanted.metric AND own.customer_ref = wanted.customer_ref
        AND period_start >= begins AND period_start < ends AND ingress_sequence <= {lo}
    OFFSET 0
) AS it
