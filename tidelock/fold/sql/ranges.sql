-- name: next_range
-- The last commit of the next range: the first one after the cursor if it is a control event or too large, otherwise
-- the last one within the limit and before the next control event. The limit counts events: a sequence database may
-- leave numbers out between two commits. And the first correction after the cursor, wherever it is.
WITH within AS (
    SELECT last_sequence FROM commits WHERE last_sequence - skipped <= {events_max} + {lo}::bigint - coalesce((
        SELECT skipped FROM commits WHERE last_sequence <= {lo} ORDER BY last_sequence DESC LIMIT 1
    ), 0)
    ORDER BY last_sequence - skipped DESC LIMIT 1
), following AS (
    SELECT first_sequence, last_sequence, last_source_timestamp, control FROM commits
    WHERE first_sequence > {lo} AND last_sequence <= {through} ORDER BY first_sequence LIMIT 1
), control AS (
    SELECT min(first_sequence) AS sequence FROM commits WHERE control AND first_sequence > {lo}
), furthest AS (
    SELECT first_sequence, last_sequence, last_source_timestamp, control FROM commits
    WHERE last_sequence > {lo} AND last_sequence <= least(coalesce((SELECT last_sequence FROM within), {lo}), {through})
        AND last_sequence < coalesce((SELECT sequence FROM control), 9223372036854775807)
        AND NOT (SELECT control FROM following)
    ORDER BY last_sequence DESC LIMIT 1
)
SELECT last_sequence, last_source_timestamp, control,
    (SELECT min(ingress_sequence) FROM corrections WHERE ingress_sequence > {lo}) AS correction
FROM (SELECT 1 AS choice, * FROM furthest UNION ALL SELECT 2, * FROM following) AS found ORDER BY choice LIMIT 1

-- name: control_data
-- What a control event says.
SELECT data::text AS data FROM events WHERE ingress_sequence = {sequence}

-- name: ledger_end
-- Where the ledger ends now.
SELECT ingress_sequence FROM ledger_head

-- name: control_events
-- The control events after the cursor, the last first.
SELECT data::text AS data FROM events JOIN commits ON first_sequence = ingress_sequence
WHERE control AND first_sequence > {after} ORDER BY first_sequence DESC

-- name: definition_events
-- The events that have changed the definitions, the first of them first.
SELECT first_sequence AS sequence, data::text AS data FROM commits JOIN events ON ingress_sequence = first_sequence
WHERE control AND first_sequence <= {through} AND data ->> 'type' = 'definition' ORDER BY first_sequence

-- name: commit_end
-- The last sequence of the commit that a sequence is in.
SELECT min(last_sequence) AS sequence FROM commits WHERE last_sequence >= {sequence}

-- name: events_between
-- How many events a range has, and the first of them; nothing of an empty one.
SELECT first_sequence, last_sequence - last.skipped - (first_sequence - 1 - first.skipped) AS events
FROM (SELECT first_sequence, skipped FROM commits WHERE first_sequence > {lo} ORDER BY first_sequence LIMIT 1) AS first,
    (SELECT last_sequence, skipped FROM commits WHERE last_sequence <= {hi} ORDER BY last_sequence DESC LIMIT 1) AS last
