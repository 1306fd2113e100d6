-- name: read_state
-- How far the fold is, as a sequence and as a source timestamp, by which version of the definitions (null before it has
-- ever run), and through when changes may be gone.
SELECT sequence, coalesce((
    SELECT last_source_timestamp FROM commits WHERE last_sequence <= sequence ORDER BY last_sequence DESC LIMIT 1
), 0), (SELECT version FROM fold_definitions), (SELECT source_timestamp FROM changes_pruned)
FROM (SELECT coalesce((SELECT sequence FROM cursors WHERE name = 'fold'), 0) AS sequence) AS fold;

-- name: page
-- The next segments of some tables, or all, behind a place in the log, with what was pruned meanwhile. Of a range and table they
-- come in turns of one part of each lane. A page has whole turns, up to a number of changes and at least one turn; of several lanes
-- two, so that what one lane has beyond the end of another need not be read for every part. `turns` says how many there
-- are of a lane, `more` whether others follow. A row without a segment says that there is none.
WITH behind AS NOT MATERIALIZED (
    SELECT * FROM changes
    WHERE (%(tables)s::text[] IS NULL OR table_name = ANY(%(tables)s)) AND last_source_timestamp > %(after)s AND last_sequence <= %(through)s
        AND first_source_timestamp <= %(until)s
        AND (last_sequence, table_name) >= (%(last_sequence)s, %(table_name)s)
        AND ((last_sequence, table_name) > (%(last_sequence)s, %(table_name)s)
            OR part >= coalesce((%(parts)s::integer[])[lane + 1], 0))
), near AS (
    SELECT last_sequence FROM behind ORDER BY last_sequence LIMIT %(parts_max)s + 1
), following AS (
    SELECT last_sequence, table_name, lane, part, last_source_timestamp, rows, segment,
        row_number() OVER (PARTITION BY last_sequence, table_name, lane ORDER BY part) AS turn,
        count(*) OVER (PARTITION BY last_sequence, table_name, lane) AS turns
    FROM behind WHERE last_sequence <= (SELECT max(last_sequence) FROM near)
), counted AS (
    SELECT *, coalesce(sum(rows) OVER before, 0) AS rows_before, count(*) OVER before AS parts_before,
        dense_rank() OVER (ORDER BY last_sequence, table_name) AS number,
        count(*) FILTER (WHERE turn = 1) OVER (PARTITION BY last_sequence, table_name) AS lanes
    FROM following
    WINDOW before AS (
        ORDER BY last_sequence, table_name, turn GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
), taken AS (
    SELECT *, (SELECT count(*) FROM counted) > count(*) OVER () OR (SELECT count(*) FROM near) > %(parts_max)s AS more
    FROM counted
    WHERE (rows_before < %(rows_max)s AND parts_before < %(parts_max)s) OR (number = 1 AND turn = 2 AND lanes > 1)
)
SELECT (SELECT source_timestamp FROM changes_pruned), more, last_sequence, table_name, lane, part,
    last_source_timestamp, turn, turns, segment
FROM (VALUES (true)) AS one LEFT JOIN taken ON true
ORDER BY last_sequence, table_name, lane, part;

-- name: pruned
-- Changes through this source timestamp may be gone.
SELECT source_timestamp FROM changes_pruned;

-- name: range
-- What a range has of some tables, or all: which have changes, and when the last is. With what was pruned meanwhile.
SELECT (SELECT source_timestamp FROM changes_pruned), array_agg(DISTINCT table_name), max(last_source_timestamp)
FROM changes
WHERE last_sequence = %(last_sequence)s AND (%(tables)s::text[] IS NULL OR table_name = ANY(%(tables)s));

-- name: time_of_sequence
-- Source timestamp of the commit that a reader is complete through; 0 at the very beginning.
SELECT coalesce((
    SELECT last_source_timestamp FROM commits WHERE last_sequence <= %s ORDER BY last_sequence DESC LIMIT 1
), 0);

-- name: prune
-- Removes some of the oldest ranges that are older than the retention and that every durable reader has read, and
-- remembers through when. Readers of the ledger that make changes, not read them, do not count. From the oldest on and
-- not past the first recent one: what is left has no gap, even when the clock was set back.
WITH oldest AS (
    SELECT last_sequence, recorded_at < now() - %(retention_us)s * interval '1 microsecond' AS old FROM changes
    WHERE last_sequence <= %(keep_after)s AND last_sequence <= coalesce((
        SELECT min(sequence) FROM cursors WHERE name <> 'fold' AND name NOT LIKE 'fold:%%'
    ), %(keep_after)s)
    ORDER BY last_sequence LIMIT %(limit)s
), gone AS (
    DELETE FROM changes
    WHERE last_sequence <= (SELECT max(last_sequence) FROM oldest WHERE old)
        AND last_sequence < coalesce((SELECT min(last_sequence) FROM oldest WHERE NOT old), %(keep_after)s + 1)
    RETURNING last_source_timestamp
), remembered AS (
    UPDATE changes_pruned SET source_timestamp = greatest(source_timestamp, last)
    FROM (SELECT max(last_source_timestamp) AS last FROM gone) AS newest WHERE last IS NOT NULL
)
SELECT count(*) FROM gone;

-- name: before_last
-- A source timestamp after which a table has at least a number of its last changes, and not many more. Parts count from
-- the one that begins last: lanes of a range overlap in time.
SELECT coalesce(min(first_source_timestamp) - 1, 0) FROM (
    SELECT first_source_timestamp, sum(rows) OVER (
        ORDER BY last_sequence DESC, first_source_timestamp DESC, part DESC, lane DESC
    ) - rows AS later
    FROM changes WHERE table_name = %s
) AS parts
WHERE later < %s;
