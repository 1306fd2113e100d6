-- name: look
-- How far the fold is, as a sequence and as a source timestamp, by which version of the definitions (null before it has
-- ever run), and through when changes may be gone.
SELECT sequence, coalesce((
    SELECT last_source_timestamp FROM commits WHERE last_sequence <= sequence ORDER BY last_sequence DESC LIMIT 1
), 0), (SELECT version FROM fold_definitions), (SELECT source_timestamp FROM changes_pruned)
FROM (SELECT coalesce((SELECT sequence FROM cursors WHERE name = 'fold'), 0) AS sequence) AS fold;

-- name: page
-- The next segments of some tables behind a place in the log, of so many changes and at least one, with what was pruned
-- meanwhile; `more` says whether others follow. A row without a segment says that there is none.
WITH following AS (
    SELECT last_sequence, table_name, part, last_source_timestamp, rows, segment FROM changes
    WHERE table_name = ANY(%(tables)s) AND last_source_timestamp > %(after)s AND last_sequence <= %(through)s
        AND (last_sequence, table_name, part) > (%(last_sequence)s, %(table_name)s, %(part)s)
    ORDER BY last_sequence, table_name, part LIMIT %(parts_max)s + 1
), counted AS (
    SELECT *, sum(rows) OVER places - rows AS before, row_number() OVER places AS number, count(*) OVER () AS found
    FROM following WINDOW places AS (ORDER BY last_sequence, table_name, part)
), taken AS (
    SELECT *, found > max(number) OVER () AS more FROM counted
    WHERE (before < %(rows_max)s OR number = 1) AND number <= %(parts_max)s
)
SELECT (SELECT source_timestamp FROM changes_pruned), last_sequence, table_name, part, last_source_timestamp, more,
    segment
FROM (VALUES (true)) AS one LEFT JOIN taken ON true
ORDER BY last_sequence, table_name, part;
