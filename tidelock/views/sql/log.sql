-- name: read_state
-- How far the fold is, as a sequence and as a source timestamp, by which version of the definitions (null before it has
-- ever run), and through when changes may be gone.
SELECT sequence, coalesce((
    SELECT last_source_timestamp FROM commits WHERE last_sequence <= sequence ORDER BY last_sequence DESC LIMIT 1
), 0), (SELECT version FROM fold_definitions), (SELECT source_timestamp FROM changes_pruned)
FROM (SELECT coalesce((SELECT sequence FROM cursors WHERE name = 'fold'), 0) AS sequence) AS fold;

-- name: page
-- The next segments of some tables behind a place in the log, with what was pruned meanwhile. Of a range and table they
-- come in turns of one part of each lane. A page has whole turns, of so many changes and at least one; of several lanes
-- two, so that what one lane has beyond the end of another need not be read for every part. `turns` says how many there
-- are of a lane, `more` whether others follow. A row without a segment says that there is none.
WITH behind AS NOT MATERIALIZED (
    SELECT * FROM changes
    WHERE table_name = ANY(%(tables)s) AND last_source_timestamp > %(after)s AND last_sequence <= %(through)s
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
