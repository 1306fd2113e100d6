-- The ledger: events in one order, their identities, the commits that chain them, and who may write.

-- COLLATE "C" on every name: order by code point, the same in every database, and comparisons cost a memcmp.
CREATE TABLE events (
    ingress_sequence bigint   NOT NULL,
    commit_id        bigint   NOT NULL,
    source_timestamp bigint   NOT NULL,
    received_at      bigint   NOT NULL,
    occurred_at      bigint   NOT NULL,
    tenant_id        text     COLLATE "C" NOT NULL,
    stream           text     COLLATE "C" NOT NULL,
    customer_ref     text     COLLATE "C",
    resource_id      text     COLLATE "C",
    row_key          text     COLLATE "C",
    op               text     COLLATE "C" NOT NULL,
    quantity         numeric,
    data             json,
    causality_key    text     COLLATE "C",
    correlation_id   text     COLLATE "C",
    causation_id     text     COLLATE "C",
    source           text     COLLATE "C",
    idempotency_key  text     COLLATE "C",
    key_source       "char",
    content_hash     bytea    NOT NULL,
    PRIMARY KEY (ingress_sequence)
) PARTITION BY RANGE (ingress_sequence);

COMMENT ON TABLE events IS 'Recorded events in ledger order; append-only.';
COMMENT ON COLUMN events.data IS 'The JSON text as it was sent and hashed: jsonb would lose member order and numbers.';
COMMENT ON COLUMN events.key_source IS 'c: the client sent the key, d: derived, null: the event has no identity.';

-- Takes what lies beyond the numbered partitions, so that a jump of the sequence never stops the ledger.
CREATE TABLE events_default PARTITION OF events DEFAULT;

CREATE INDEX events_slice ON events (tenant_id, stream, customer_ref, occurred_at);
CREATE INDEX events_causality ON events (causality_key, ingress_sequence) WHERE causality_key IS NOT NULL;

-- Apart from events, so that these can be partitioned and archived while a duplicate is known for ever.
CREATE TABLE identities (
    digest           bytea  PRIMARY KEY,
    ingress_sequence bigint NOT NULL,
    content_hash     bytea  NOT NULL,
    key_source       "char" NOT NULL
);

CREATE TABLE commits (
    commit_id             bigint  PRIMARY KEY,
    first_sequence        bigint  NOT NULL UNIQUE,
    last_sequence         bigint  NOT NULL UNIQUE,
    last_source_timestamp bigint  NOT NULL,
    control               boolean NOT NULL,
    digest                bytea   NOT NULL,
    CHECK (first_sequence <= last_sequence)
);

COMMENT ON COLUMN commits.control IS 'One control event: a fold range never spans it.';

-- One row. Whoever writes the ledger locks it first: that is what makes sequence order commit order.
CREATE TABLE ledger_head (
    only_row         boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ingress_sequence bigint  NOT NULL DEFAULT 0,
    commit_id        bigint  NOT NULL DEFAULT 0,
    source_timestamp bigint  NOT NULL DEFAULT 0,
    digest           bytea   NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    salts_version    bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

INSERT INTO ledger_head DEFAULT VALUES;

CREATE TABLE cursors (
    name     text   PRIMARY KEY,
    sequence bigint NOT NULL
);

CREATE TABLE salts (
    position integer PRIMARY KEY CHECK (position >= 0),
    salt     text    NOT NULL UNIQUE,
    added_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN salts.position IS '0 derives new keys; the others still recognise what they derived.';

CREATE TABLE api_keys (
    id         text        PRIMARY KEY,
    key_hash   bytea       NOT NULL UNIQUE,
    tenant_id  text        COLLATE "C" NOT NULL,
    scopes     text[]      NOT NULL,
    streams    text[],
    label      text        NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);

CREATE TABLE imports (
    file_digest text        PRIMARY KEY,
    file_name   text        NOT NULL,
    rows_done   bigint      NOT NULL,
    finished    boolean     NOT NULL DEFAULT false,
    updated_at  timestamptz NOT NULL DEFAULT now()
);

-- No update and no delete on the ledger, whoever asks and with whatever client.
CREATE FUNCTION refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: % on % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', HINT = 'Record a correcting event instead.';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON events_default
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON identities
    FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON identities
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON commits
    FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON commits
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();

CREATE FUNCTION refuse_head_going_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' OR NEW.ingress_sequence < OLD.ingress_sequence OR NEW.commit_id < OLD.commit_id
        OR NEW.source_timestamp < OLD.source_timestamp
    THEN
        RAISE EXCEPTION 'the head of the ledger only moves forward: % is refused', TG_OP
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER forward_only BEFORE UPDATE OR DELETE ON ledger_head
    FOR EACH ROW EXECUTE FUNCTION refuse_head_going_back();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON ledger_head
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();

-- Makes the numbered partition that holds `sequence`, of `size` events, if it is not there yet. Called under the
-- head lock, so nobody inserts meanwhile. A partition whose range already has rows in events_default (written
-- after a jump) is not made: those rows stay where they are and the default partition goes on taking that range.
CREATE FUNCTION ensure_events_partition(sequence bigint, size bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    lower bigint := sequence / size * size;
    upper bigint := lower + size;
    partition text := 'events_' || lower || '_' || upper;
    overlap boolean;
BEGIN
    SELECT EXISTS (
        SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        CROSS JOIN LATERAL regexp_match(relname, '^events_(\d+)_(\d+)$') AS bounds
        WHERE inhparent = 'events'::regclass AND bounds IS NOT NULL
            AND bounds[1]::bigint < upper AND lower < bounds[2]::bigint
    ) INTO overlap;
    IF overlap OR EXISTS (SELECT FROM events_default WHERE ingress_sequence >= lower AND ingress_sequence < upper) THEN
        RETURN NULL;
    END IF;
    EXECUTE format('CREATE TABLE %I PARTITION OF events FOR VALUES FROM (%s) TO (%s)', partition, lower, upper);
    EXECUTE format('CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON %I '
        'FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()', partition);
    RETURN partition;
END $$;

-- For people: instants as timestamps (Postgres keeps microseconds; the exact nanoseconds are in events).
CREATE VIEW events_readable AS
SELECT ingress_sequence, commit_id, source_timestamp,
    timestamptz 'epoch' + received_at / 1000 * interval '1 microsecond' AS received_at,
    timestamptz 'epoch' + occurred_at / 1000 * interval '1 microsecond' AS occurred_at,
    tenant_id, stream, customer_ref, resource_id, row_key, op, quantity, data, causality_key, correlation_id,
    causation_id, source, idempotency_key,
    CASE key_source WHEN 'c' THEN 'client' WHEN 'd' THEN 'derived' ELSE 'none' END AS key_source,
    content_hash
FROM events;
