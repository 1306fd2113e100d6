-- name: read_position
-- How far a file was imported, and whether to its end.
SELECT rows_done, finished FROM imports WHERE file_digest = %s;

-- name: move_position
-- Remembers how far a file is imported.
INSERT INTO imports (file_digest, file_name, rows_done, finished)
VALUES (%(file)s, %(name)s, %(rows)s, %(finished)s)
ON CONFLICT (file_digest) DO UPDATE
SET file_name = excluded.file_name, rows_done = excluded.rows_done, finished = excluded.finished, updated_at = now();
