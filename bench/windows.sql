-- What windows and ordered output of a backlog should be, by the plainest SQL, beside what the fold has made.

-- name: make_judged
-- Where events are judged.
CREATE TEMPORARY TABLE judged (ingress_sequence bigint, customer_ref text COLLATE "C", occurred_at bigint,
    quantity numeric, window_start bigint, late boolean);

-- name: judge
-- Every event with its window: late, if the watermark before its collection had come that far.
WITH collections AS (
    SELECT source_timestamp, max(max(occurred_at)) OVER (ORDER BY source_timestamp
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - %(tolerance)s::bigint AS watermark
    FROM events GROUP BY source_timestamp
)
INSERT INTO judged
SELECT ingress_sequence, customer_ref, occurred_at, quantity, occurred_at - occurred_at %% %(size)s::bigint,
    coalesce(occurred_at <= watermark, false)
FROM events JOIN collections USING (source_timestamp);

-- name: late
-- Late rows that are missing or should not be, and how many the fold has.
SELECT count(*) FILTER (WHERE wanted.ingress_sequence IS NULL OR found.ingress_sequence IS NULL),
    count(found.ingress_sequence)
FROM (SELECT ingress_sequence FROM judged WHERE late) AS wanted
    FULL JOIN tidelock_tables.late_rows AS found USING (ingress_sequence);

-- name: windows
-- Closed windows that are not as they should be, and how many the fold has.
SELECT count(*) FILTER (WHERE (wanted.events, wanted.quantity) IS DISTINCT FROM (found.events, found.quantity)),
    count(found.events)
FROM (
    SELECT customer_ref, window_start, count(*) AS events, sum(quantity) AS quantity FROM judged
    WHERE NOT late AND window_start + %(size)s::bigint <= %(reached)s::bigint GROUP BY customer_ref, window_start
) AS wanted
    FULL JOIN tidelock_tables.per_customer AS found USING (customer_ref, window_start);

-- name: open
-- How many windows are open, and how many should be.
SELECT (SELECT count(*) FROM tidelock_tables."per_customer$open"), count(*)
FROM (SELECT DISTINCT customer_ref, window_start FROM judged
    WHERE NOT late AND window_start + %(size)s::bigint > %(reached)s::bigint) AS wanted;

-- name: ordered
-- Released rows that are missing, should not be or have another's place, and how many the fold has.
SELECT count(*) FILTER (WHERE wanted.position IS DISTINCT FROM found.position), count(found.position)
FROM (
    SELECT ingress_sequence, row_number() OVER (ORDER BY occurred_at, ingress_sequence) AS position FROM judged
    WHERE NOT late AND occurred_at <= %(reached)s::bigint
) AS wanted
    FULL JOIN tidelock_tables.api_calls_ordered AS found USING (ingress_sequence);

-- name: held
-- How many rows are held back, and how many should be.
SELECT (SELECT count(*) FROM tidelock_tables."api_calls_ordered$held"), count(*)
FROM judged WHERE NOT late AND occurred_at > %(reached)s::bigint;

-- name: wait_open
-- Windows that are open and stay so.
INSERT INTO tidelock_tables."per_customer$open" (tenant_id, "$key", source_timestamp, "$group", group_0, window_start,
    window_end, count_0, sum_1)
SELECT 'default', format('["waits %%s","2200-01-01T00:00:00Z"]', n), 0, format('["waits %%s"]', n),
    format('waits %%s', n), 7258118400000000000, 7258118410000000000, 1, 1
FROM generate_series(1, %(rows)s) AS n;

-- name: wait_held
-- Rows that are held back and stay so.
INSERT INTO tidelock_tables."api_calls_ordered$held" (tenant_id, "$key", source_timestamp, ingress_sequence, event_time,
    customer_ref, occurred_at, quantity)
SELECT 'default', (-n)::text, 0, -n, 7258118400000000000 + n, format('waits %%s', n), 7258118400000000000 + n, 1
FROM generate_series(1, %(rows)s) AS n;

-- name: analyze_open
-- As autovacuum would have done by then.
ANALYZE tidelock_tables."per_customer$open";

-- name: analyze_held
-- As autovacuum would have done by then.
ANALYZE tidelock_tables."api_calls_ordered$held";

-- name: within
-- How many events that are not late closed windows hold, and how many with the late ones.
SELECT count(*) FILTER (WHERE NOT late), count(*)
FROM judged WHERE window_start + %(size)s::bigint <= %(reached)s::bigint;

-- name: latest
-- The time of the latest event.
SELECT max(occurred_at) FROM events;
