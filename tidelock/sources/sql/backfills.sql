-- name: read_backfill
-- How far a backfill is, and what became of its rows so far.
SELECT position, rows_done, accepted, duplicates, conflicts, rejected, finished FROM backfills WHERE backfill = %s;

-- name: move_backfill
-- Remembers how far a backfill is.
INSERT INTO backfills (backfill, name, position, rows_done, accepted, duplicates, conflicts, rejected, finished)
VALUES (%(backfill)s, %(name)s, %(position)s, %(rows)s, %(accepted)s, %(duplicates)s, %(conflicts)s, %(rejected)s,
    %(finished)s)
ON CONFLICT (backfill) DO UPDATE
SET position = excluded.position, rows_done = excluded.rows_done, accepted = excluded.accepted,
    duplicates = excluded.duplicates, conflicts = excluded.conflicts, rejected = excluded.rejected,
    finished = excluded.finished, updated_at = now();

-- name: forget_problems
-- Forgets rows that could not be recorded, from a number on: they are looked at again.
DELETE FROM backfill_problems WHERE backfill = %s AND row_number >= %s;

-- name: forget_unplaced
-- Forgets the rows that have no place in the order: they are looked for again.
DELETE FROM backfill_problems WHERE backfill = %s AND row_number = 0;

-- name: add_problem
-- Remembers a row that could not be recorded.
INSERT INTO backfill_problems (backfill, row_number, row_id, verdict) VALUES (%s, %s, %s, %s);

-- name: read_problems
-- The rows that could not be recorded, in their order.
SELECT row_number, row_id, verdict::text FROM backfill_problems WHERE backfill = %s
ORDER BY row_number, row_id LIMIT %s;
