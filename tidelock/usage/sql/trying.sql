-- name: read_head
-- The head, and the clock.
SELECT ingress_sequence, commit_id, source_timestamp, digest, salts_version, skipped,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000
FROM ledger_head;
