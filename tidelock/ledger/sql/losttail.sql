-- name: head
-- The head of the ledger.
SELECT ingress_sequence, commit_id, source_timestamp, digest, salts_version, skipped FROM ledger_head;

-- name: digests
-- The digests of some commits.
SELECT commit_id, digest FROM commits WHERE commit_id = ANY(%s);

-- name: readers_ahead
-- Readers whose cursors are beyond the end of the ledger.
SELECT name, sequence FROM cursors WHERE sequence > (SELECT ingress_sequence FROM ledger_head);

-- name: losses
-- The control events that accept a loss. By the slice's index, which has the few control events together.
SELECT ingress_sequence, commit_id, data::text AS data FROM events
WHERE tenant_id = '_tidelock' AND stream = '_tidelock' AND data ->> 'type' = 'accepted_loss' ORDER BY ingress_sequence
