-- name: begin
-- A mirror that has nothing yet.
INSERT INTO cursors (name, sequence) VALUES ('kafka', 0) ON CONFLICT DO NOTHING;

-- name: position
-- Through which sequence the ledger is in Kafka.
SELECT sequence FROM cursors WHERE name = 'kafka';

-- name: ledger_end
-- Through which sequence it could be.
SELECT ingress_sequence FROM ledger_head;

-- name: move
-- Moves the cursor, if nobody else has.
UPDATE cursors SET sequence = %(after)s WHERE name = 'kafka' AND sequence = %(before)s;

-- name: forget
-- A range that is joined with the one behind it.
DELETE FROM mirrored WHERE last_sequence = %s;

-- name: record
-- Where a range is, one row a partition.
INSERT INTO mirrored (first_sequence, last_sequence, topic, partition, first_offset, last_offset)
SELECT %(first)s, %(last)s, topic, partition, first_offset, last_offset
FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(firsts)s::bigint[], %(lasts)s::bigint[])
    AS span (topic, partition, first_offset, last_offset);

-- name: mirrored
-- What each partition has: its offsets, and the sequences they lie between.
SELECT topic, partition, min(first_offset), max(last_offset), min(first_sequence), max(last_sequence)
FROM mirrored GROUP BY topic, partition ORDER BY topic, partition LIMIT %s;

-- name: restart
-- Moves the cursor back to before a sequence: to the end of the last range that does not reach it.
UPDATE cursors SET sequence = coalesce((SELECT max(last_sequence) FROM mirrored WHERE last_sequence < %(first)s), 0)
WHERE name = 'kafka' RETURNING sequence;

-- name: forget_from
-- The ranges behind there.
DELETE FROM mirrored WHERE last_sequence >= %s;

-- name: repaired
-- Up to where a partition's messages do not count any more where no range has them.
INSERT INTO mirror_repairs (topic, partition, end_offset) VALUES (%s, %s, %s)
ON CONFLICT (topic, partition) DO UPDATE SET end_offset = excluded.end_offset;

-- name: wake
-- A mirror that waits for a commit looks at its cursor. What is told is what the last commit told.
SELECT pg_notify('tidelock_ledger', ingress_sequence::text) FROM ledger_head;

-- name: repairs
-- The same, of all partitions.
SELECT topic, partition, end_offset FROM mirror_repairs;
