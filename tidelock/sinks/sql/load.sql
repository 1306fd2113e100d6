-- name: frontier
-- The last commit of the next step: the furthest within the limit, or the first if it alone is beyond it.
WITH within AS (
    SELECT last_sequence FROM commits WHERE last_sequence - skipped <= {events_max} + {lo}::bigint - coalesce((
        SELECT skipped FROM commits WHERE last_sequence <= {lo} ORDER BY last_sequence DESC LIMIT 1
    ), 0)
    ORDER BY last_sequence - skipped DESC LIMIT 1
), following AS (
    SELECT last_sequence FROM commits WHERE first_sequence > {lo} AND last_sequence <= {through}
    ORDER BY first_sequence LIMIT 1
)
SELECT greatest(
    (SELECT last_sequence FROM following),
    (SELECT max(last_sequence) FROM commits
        WHERE last_sequence > {lo} AND last_sequence <= least(coalesce((SELECT last_sequence FROM within), {lo}), {through}))
) AS sequence

-- name: following
-- The first sequence that is recorded above another.
SELECT greatest(first_sequence, {lo}::bigint + 1) AS sequence FROM commits
WHERE last_sequence > {lo} ORDER BY last_sequence LIMIT 1

-- name: head
-- Where the ledger ends.
SELECT ingress_sequence, commit_id FROM ledger_head

-- name: position
-- How far a reader is; nothing where it never was.
SELECT sequence FROM cursors WHERE name = {name}

-- name: mirrored
-- Where in Kafka the events of a range are.
SELECT topic, partition, first_sequence, last_sequence, first_offset, last_offset FROM mirrored
WHERE last_sequence > {lo} AND first_sequence <= {hi}

-- name: commit_end
-- The last end of a commit up to a sequence.
SELECT max(last_sequence) AS sequence FROM commits WHERE last_sequence <= {sequence}

-- name: recorded
-- How many events a range has: within a commit no number is left out.
SELECT coalesce(sum(least(last_sequence, {hi}) - greatest(first_sequence, {lo}::bigint + 1) + 1), 0) AS events FROM commits
WHERE last_sequence > {lo} AND first_sequence <= {hi}
