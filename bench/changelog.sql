-- name: begin
-- The fold's own cursor, which is not there before it has ever run.
INSERT INTO cursors (name, sequence) VALUES ('fold', 0) ON CONFLICT DO NOTHING;

-- name: last
-- Where the log ends.
SELECT coalesce(max(last_sequence), 0), coalesce(max(last_source_timestamp), 0) FROM commits;

-- name: write
-- A range of one segment, in a commit of its own.
WITH commit AS (
    INSERT INTO commits (commit_id, first_sequence, last_sequence, last_source_timestamp, control, digest)
    SELECT coalesce(max(commit_id), 0) + 1, %(first)s, %(last)s, %(last_time)s, false, '' FROM commits
), change AS (
    INSERT INTO changes
        (table_name, last_sequence, part, first_source_timestamp, last_source_timestamp, rows, segment)
    VALUES (%(table)s, %(last)s, 0, %(first_time)s, %(last_time)s, %(rows)s, %(segment)s)
)
UPDATE cursors SET sequence = %(last)s WHERE name = 'fold';

-- name: tell
-- As the fold tells that it has moved.
SELECT pg_notify('tidelock_fold', sequence::text) FROM cursors WHERE name = 'fold';
