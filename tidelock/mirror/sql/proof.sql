-- name: events
-- How many events there are through a sequence that ends a commit.
SELECT coalesce(max(last_sequence - skipped), 0) FROM commits WHERE last_sequence <= %s;

-- name: sequences
-- A page of sequences with the streams of their events.
SELECT ingress_sequence, stream FROM events WHERE ingress_sequence > %s AND ingress_sequence <= %s
ORDER BY ingress_sequence LIMIT %s;

-- name: ranges
-- Every range in the order of offsets.
SELECT topic, partition, first_offset, last_offset, first_sequence, last_sequence FROM mirrored
ORDER BY topic, partition, first_offset;

-- name: head
-- Where the ledger ends.
SELECT ingress_sequence, commit_id FROM ledger_head;
