-- Corrections: what an event corrects and why, and the batch it came with. Each row has its own digest: the second form
-- of the chain.

ALTER TABLE events
    ADD COLUMN target          text   COLLATE "C",
    ADD COLUMN target_sequence bigint,
    ADD COLUMN reason          text   COLLATE "C",
    ADD COLUMN batch_id        text   COLLATE "C",
    ADD COLUMN row_digest      bytea;

COMMENT ON COLUMN events.target IS 'The key of the event that a void or an amendment corrects.';
COMMENT ON COLUMN events.row_digest IS 'Over all other columns; null in commits of the first form.';

CREATE INDEX events_batch ON events (batch_id, ingress_sequence) WHERE batch_id IS NOT NULL;

ALTER TABLE commits ADD COLUMN form smallint NOT NULL DEFAULT 1 CHECK (form IN (1, 2));

COMMENT ON COLUMN commits.form IS 'What its digest covers: 1, the bytes of its rows; 2, their digests.';

-- What was corrected, and by what: an event is corrected at most once.
CREATE TABLE corrections (
    target_sequence  bigint PRIMARY KEY,
    ingress_sequence bigint NOT NULL UNIQUE
);

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON corrections
    FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON corrections
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();

CREATE OR REPLACE VIEW events_readable AS
SELECT ingress_sequence, commit_id, source_timestamp,
    timestamptz 'epoch' + received_at / 1000 * interval '1 microsecond' AS received_at,
    timestamptz 'epoch' + occurred_at / 1000 * interval '1 microsecond' AS occurred_at,
    tenant_id, stream, customer_ref, resource_id, row_key, op, quantity, data, causality_key, correlation_id,
    causation_id, source, idempotency_key,
    CASE key_source WHEN 'c' THEN 'client' WHEN 'd' THEN 'derived' ELSE 'none' END AS key_source,
    content_hash, target, target_sequence, reason, batch_id, row_digest
FROM events;
