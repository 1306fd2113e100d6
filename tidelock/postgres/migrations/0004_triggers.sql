-- Triggers: who is told when a row enters or leaves a condition, and what is still to be told.

CREATE TABLE triggers (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             text        COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9_.-]{1,128}$'),
    tenant_id        text        COLLATE "C" NOT NULL,
    table_name       text        COLLATE "C" NOT NULL,
    match            json        NOT NULL,
    unmatch          json,
    webhook          text        NOT NULL,
    enabled          boolean     NOT NULL,
    snapshot         boolean     NOT NULL,
    created_sequence bigint      NOT NULL,
    halted_at        timestamptz,
    halted_sequence  bigint
);

COMMENT ON TABLE triggers IS 'As the control events of the ledger say; made of them by whoever evaluates triggers.';
COMMENT ON COLUMN triggers.halted_at IS 'A receiver answered 410: nothing is sent until the trigger is enabled again.';
COMMENT ON COLUMN triggers.halted_sequence IS 'The control event that disables it for that reason.';

-- Apart from triggers, and by name: they may be there before the control event is, which never carries them.
CREATE TABLE trigger_secrets (
    trigger_name text   COLLATE "C" PRIMARY KEY,
    secrets      text[] NOT NULL CHECK (cardinality(secrets) > 0)
);

COMMENT ON COLUMN trigger_secrets.secrets IS 'Newest first; every one of them signs.';

-- Rows that are in a trigger's condition.
CREATE TABLE trigger_members (
    trigger_id       bigint NOT NULL,
    key              text   COLLATE "C" NOT NULL,
    source_timestamp bigint NOT NULL,
    PRIMARY KEY (trigger_id, key)
);

-- Whoever delivers looks again when either changes.
CREATE FUNCTION triggers_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tidelock_triggers', '');
    RETURN NULL;
END
$$;

CREATE TRIGGER triggers_changed AFTER INSERT OR UPDATE OR DELETE ON triggers
    FOR EACH STATEMENT EXECUTE FUNCTION triggers_changed();
CREATE TRIGGER triggers_changed AFTER INSERT OR UPDATE OR DELETE ON trigger_secrets
    FOR EACH STATEMENT EXECUTE FUNCTION triggers_changed();

CREATE SEQUENCE outbox_position;

-- One row per transition. A chain is what one trigger has to tell of one key: it is told in the order of position, each
-- when the one before it is delivered or dead.
CREATE TABLE outbox (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position         bigint      NOT NULL DEFAULT nextval('outbox_position'),
    trigger_id       bigint      NOT NULL,
    tenant_id        text        COLLATE "C" NOT NULL,
    key              text        COLLATE "C" NOT NULL,
    shard            smallint    NOT NULL,
    event_id         text        COLLATE "C" NOT NULL UNIQUE,
    event_type       text        COLLATE "C" NOT NULL CHECK (event_type IN ('MATCH', 'UNMATCH')),
    source_timestamp bigint      NOT NULL,
    data             json        NOT NULL,
    status           text        COLLATE "C" NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'delivered', 'dead')),
    attempts         integer     NOT NULL DEFAULT 0,
    failures         integer     NOT NULL DEFAULT 0,
    next_attempt_at  timestamptz,
    queued_at        timestamptz NOT NULL DEFAULT now(),
    settled_at       timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

COMMENT ON COLUMN outbox.position IS 'Order of appending, which is commit order; what is sent again gets a new one.';
COMMENT ON COLUMN outbox.shard IS 'All of a chain are in one; who has the lease of it delivers.';
COMMENT ON COLUMN outbox.attempts IS 'All there were.';
COMMENT ON COLUMN outbox.failures IS 'Of those since it was queued: its place in the schedule of retries.';
COMMENT ON COLUMN outbox.next_attempt_at IS 'Null until it has failed.';
COMMENT ON COLUMN outbox.queued_at IS 'When it was appended, or asked to be delivered again.';

-- What a trigger has still to tell, and its lists.
CREATE INDEX outbox_trigger ON outbox (trigger_id, status, position, shard);
-- What comes first of a chain.
CREATE INDEX outbox_chain ON outbox (trigger_id, key, position) WHERE status = 'pending';
-- What is to be tried again.
CREATE INDEX outbox_due ON outbox (trigger_id, next_attempt_at, id)
    WHERE status = 'pending' AND next_attempt_at IS NOT NULL;

-- What came of every attempt.
CREATE TABLE delivery_attempts (
    outbox_id   bigint           NOT NULL,
    number      integer          NOT NULL,
    sent_at     timestamptz      NOT NULL,
    seconds     double precision NOT NULL,
    outcome     text             NOT NULL,
    http_status integer,
    response    text             NOT NULL,
    PRIMARY KEY (outbox_id, number)
);

COMMENT ON COLUMN delivery_attempts.response IS 'The beginning of the answer, or why there was none.';

-- Processes that deliver, and who of them delivers what. A lease that is not renewed ends.
CREATE TABLE outbox_owners (
    owner      text        COLLATE "C" PRIMARY KEY,
    expires_at timestamptz NOT NULL
);

CREATE TABLE outbox_shards (
    shard      smallint    PRIMARY KEY,
    owner      text        COLLATE "C",
    expires_at timestamptz NOT NULL DEFAULT '-infinity'
);

INSERT INTO outbox_shards (shard) SELECT generate_series(0, 15);
