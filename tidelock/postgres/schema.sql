-- The whole present schema, for reading. The numbered migrations lead to it; a test proves that both are equal.

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
    target           text     COLLATE "C",
    target_sequence  bigint,
    reason           text     COLLATE "C",
    batch_id         text     COLLATE "C",
    row_digest       bytea,
    PRIMARY KEY (ingress_sequence)
) PARTITION BY RANGE (ingress_sequence);

COMMENT ON TABLE events IS 'Recorded events in ledger order; append-only.';
COMMENT ON COLUMN events.data IS 'The JSON text as it was sent and hashed: jsonb would lose member order and numbers.';
COMMENT ON COLUMN events.key_source IS 'c: the client sent the key, d: derived, null: the event has no identity.';
COMMENT ON COLUMN events.target IS 'The key of the event that a void or an amendment corrects.';
COMMENT ON COLUMN events.row_digest IS 'Over all other columns; null in commits of the first form.';

-- Takes what lies beyond the numbered partitions, so that a jump of the sequence never stops the ledger.
CREATE TABLE events_default PARTITION OF events DEFAULT;

CREATE INDEX events_slice ON events (tenant_id, stream, customer_ref, occurred_at);
CREATE INDEX events_causality ON events (causality_key, ingress_sequence) WHERE causality_key IS NOT NULL;
CREATE INDEX events_batch ON events (batch_id, ingress_sequence) WHERE batch_id IS NOT NULL;

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
    skipped               bigint  NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    form                  smallint NOT NULL DEFAULT 1 CHECK (form IN (1, 2)),
    CHECK (first_sequence <= last_sequence)
);

COMMENT ON COLUMN commits.control IS 'One control event: a fold range never spans it.';
COMMENT ON COLUMN commits.skipped IS 'Numbers left out so far, those right before this commit included.';
COMMENT ON COLUMN commits.form IS 'What its digest covers: 1, the bytes of its rows; 2, their digests.';

-- What was corrected, and by what: an event is corrected at most once.
CREATE TABLE corrections (
    target_sequence  bigint PRIMARY KEY,
    ingress_sequence bigint NOT NULL UNIQUE
);

-- How many events there are through a commit: what is behind or ahead is counted without reading events.
CREATE UNIQUE INDEX commits_events ON commits ((last_sequence - skipped));

-- One row. Whoever writes the ledger locks it first: that is what makes sequence order commit order.
CREATE TABLE ledger_head (
    only_row         boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ingress_sequence bigint  NOT NULL DEFAULT 0,
    commit_id        bigint  NOT NULL DEFAULT 0,
    source_timestamp bigint  NOT NULL DEFAULT 0,
    digest           bytea   NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    salts_version    bigint  NOT NULL DEFAULT 0,
    skipped          bigint  NOT NULL DEFAULT 0,
    sequence_source  text    NOT NULL DEFAULT 'local' CHECK (sequence_source IN ('local', 'remote')),
    sequence_since   bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

COMMENT ON COLUMN ledger_head.sequence_source IS 'Where the last commit had its numbers from.';
COMMENT ON COLUMN ledger_head.sequence_since IS 'Source timestamp of the first commit that had them from there; 0: always.';

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
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON corrections
    FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON corrections
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
    content_hash, target, target_sequence, reason, batch_id, row_digest
FROM events;


CREATE SCHEMA tidelock_tables;

-- The next control event of the ledger: a range of the fold ends before it.
CREATE INDEX commits_control ON commits (first_sequence) WHERE control;

-- What the tables are made by, and what they look like.
CREATE TABLE fold_definitions (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version     bigint  NOT NULL,
    definitions json    NOT NULL,
    hashes      json    NOT NULL,
    tables      json    NOT NULL
);

COMMENT ON COLUMN fold_definitions.version IS 'Raised with every change, so that readers know when to look again.';
COMMENT ON COLUMN fold_definitions.hashes IS 'The hash of every definition that made rows, by its path (meters.api_calls).';
COMMENT ON COLUMN fold_definitions.tables IS 'Name, columns with types, and key columns of every table.';

-- Every table of the fold has tenant_id, "$key" (the text of its key columns; no declared column can have that name)
-- and source_timestamp, of the collection that last changed the row. Instants are nanoseconds since 1970.
CREATE TABLE tidelock_tables.counters (
    tenant_id        text           COLLATE "C" NOT NULL,
    "$key"           text           COLLATE "C" NOT NULL,
    metric           text           COLLATE "C" NOT NULL,
    customer_ref     text           COLLATE "C" NOT NULL,
    period_start     bigint         NOT NULL,
    agg_sum          numeric(38, 9),
    agg_count        bigint         NOT NULL,
    agg_max          numeric(38, 9),
    agg_min          numeric(38, 9),
    agg_last         numeric(38, 9),
    watermark_ts     bigint,
    value            numeric(38, 9),
    total            numeric(38, 9),
    source_timestamp bigint         NOT NULL,
    last_at          bigint,
    adj_sum          numeric(38, 9) NOT NULL,
    adj_count        bigint         NOT NULL,
    adj_max          numeric(38, 9),
    adj_min          numeric(38, 9),
    closed_last      numeric(38, 9),
    closed_last_at   bigint,
    parted           boolean,
    PRIMARY KEY (tenant_id, "$key")
) WITH (fillfactor = 70);

COMMENT ON COLUMN tidelock_tables.counters.parted IS
    'True since a correction: adj_max, adj_min and closed_last are those of the whole total.';

CREATE TABLE tidelock_tables.counter_groups (
    tenant_id        text           COLLATE "C" NOT NULL,
    "$key"           text           COLLATE "C" NOT NULL,
    metric           text           COLLATE "C" NOT NULL,
    customer_ref     text           COLLATE "C" NOT NULL,
    period_start     bigint         NOT NULL,
    group_key        text           COLLATE "C",
    agg_sum          numeric(38, 9),
    agg_count        bigint         NOT NULL,
    agg_max          numeric(38, 9),
    agg_min          numeric(38, 9),
    agg_last         numeric(38, 9),
    watermark_ts     bigint,
    value            numeric(38, 9),
    total            numeric(38, 9),
    source_timestamp bigint         NOT NULL,
    last_at          bigint,
    adj_sum          numeric(38, 9) NOT NULL,
    adj_count        bigint         NOT NULL,
    adj_max          numeric(38, 9),
    adj_min          numeric(38, 9),
    adj_last         numeric(38, 9),
    adj_last_at      bigint,
    parted           boolean,
    PRIMARY KEY (tenant_id, "$key")
) WITH (fillfactor = 70);

CREATE TABLE tidelock_tables.adjustments (
    tenant_id        text           COLLATE "C" NOT NULL,
    "$key"           text           COLLATE "C" NOT NULL,
    metric           text           COLLATE "C" NOT NULL,
    customer_ref     text           COLLATE "C" NOT NULL,
    period_start     bigint         NOT NULL,
    ingress_sequence bigint         NOT NULL,
    quantity         numeric(38, 9),
    amount           numeric(38, 9) NOT NULL,
    reason           text           COLLATE "C" NOT NULL,
    occurred_at      bigint         NOT NULL,
    source_timestamp bigint         NOT NULL,
    PRIMARY KEY (tenant_id, "$key")
);

CREATE INDEX adjustments_counter ON tidelock_tables.adjustments (tenant_id, metric, customer_ref, period_start);

CREATE TABLE tidelock_tables.error_rows (
    tenant_id        text   COLLATE "C" NOT NULL,
    "$key"           text   COLLATE "C" NOT NULL,
    source           text   COLLATE "C" NOT NULL,
    ingress_sequence bigint NOT NULL,
    code             text   COLLATE "C" NOT NULL,
    message          text   COLLATE "C" NOT NULL,
    source_timestamp bigint NOT NULL,
    PRIMARY KEY (tenant_id, "$key")
);

-- One row per table, range, lane and part: an Arrow segment of (tenant_id, key, source_timestamp, old, new), compressed.
CREATE TABLE changes (
    table_name             text        COLLATE "C" NOT NULL,
    last_sequence          bigint      NOT NULL,
    part                   integer     NOT NULL,
    first_source_timestamp bigint      NOT NULL,
    last_source_timestamp  bigint      NOT NULL,
    rows                   integer     NOT NULL,
    recorded_at            timestamptz NOT NULL DEFAULT now(),
    segment                bytea       STORAGE EXTERNAL NOT NULL,
    lane                   integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (last_sequence, table_name, lane, part)
);

COMMENT ON COLUMN changes.lane IS 'The parts of one lane are in order; whoever reads a range merges its lanes.';

CREATE INDEX changes_by_time ON changes (last_source_timestamp);

-- Changes through this source timestamp may have been pruned.
CREATE TABLE changes_pruned (
    only_row         boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    source_timestamp bigint  NOT NULL DEFAULT 0
);

INSERT INTO changes_pruned DEFAULT VALUES;

-- Event time: rows that came too late, how far time has come for each window and tenant, and when something is due.

CREATE TABLE tidelock_tables.late_rows (
    tenant_id        text   COLLATE "C" NOT NULL,
    "$key"           text   COLLATE "C" NOT NULL,
    "window"         text   COLLATE "C" NOT NULL,
    ingress_sequence bigint NOT NULL,
    event_time       bigint NOT NULL,
    watermark        bigint NOT NULL,
    reason           text   COLLATE "C" NOT NULL,
    source_timestamp bigint NOT NULL,
    PRIMARY KEY (tenant_id, "$key")
);

CREATE INDEX late_rows_sequence ON tidelock_tables.late_rows (tenant_id, ingress_sequence, "$key");

-- Of windows, and of ordered output (NAME_ordered). By arrival, time is the ledger's: no watermark is stored.
CREATE TABLE tidelock_tables.watermarks (
    tenant_id               text   COLLATE "C" NOT NULL,
    "$key"                  text   COLLATE "C" NOT NULL,
    "window"                text   COLLATE "C" NOT NULL,
    watermark               bigint,
    source_timestamp        bigint NOT NULL,
    max_timestamp_seen      bigint,
    closed_through          bigint,
    last_row_at             bigint NOT NULL,
    buffer_size             bigint NOT NULL,
    late_dropped_count      bigint NOT NULL,
    watermark_emitted_count bigint NOT NULL,
    released                bigint NOT NULL,
    PRIMARY KEY (tenant_id, "$key")
);

CREATE INDEX watermarks_window ON tidelock_tables.watermarks ("window", last_row_at);

-- What passing time will do: the fold writes it, the sequencer reads it and records a tick when the moment has come.
CREATE TABLE fold_due (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    window_due bigint,
    idle_due   bigint
);

COMMENT ON COLUMN fold_due.window_due IS 'End of the next window by arrival that is open; null: none is.';
COMMENT ON COLUMN fold_due.idle_due IS 'When the next idle timeout is over; null: nothing waits for one.';

INSERT INTO fold_due DEFAULT VALUES;

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

-- What the last control event of every trigger says: written with that event, in one transaction. The table `triggers`
-- follows when whoever evaluates comes to the event.
CREATE TABLE trigger_definitions (
    name             text   COLLATE "C" PRIMARY KEY,
    tenant_id        text   COLLATE "C" NOT NULL,
    definition       json   NOT NULL,
    created_sequence bigint NOT NULL,
    changed_sequence bigint NOT NULL
);

CREATE INDEX trigger_definitions_tenant ON trigger_definitions (tenant_id, name);

COMMENT ON COLUMN trigger_definitions.created_sequence IS 'The control event that made it.';
COMMENT ON COLUMN trigger_definitions.changed_sequence IS 'The last one about it.';

-- Triggers that are enabled, as of the cursor `triggers`: what changes are held against.
CREATE TABLE trigger_watches (
    trigger_id bigint PRIMARY KEY,
    definition json   NOT NULL
);

COMMENT ON COLUMN trigger_watches.definition IS 'As its control event says, with the columns of its table then.';

-- In which triggers a row is that was deleted. There are members only of triggers that have `unmatch`: who is in
-- another is told by its rows.
CREATE INDEX trigger_members_key ON trigger_members (key);

-- Backfills: how far an older table was recorded.
CREATE TABLE backfills (
    backfill   text        COLLATE "C" PRIMARY KEY,
    name       text        NOT NULL,
    position   text[],
    rows_done  bigint      NOT NULL DEFAULT 0,
    accepted   bigint      NOT NULL DEFAULT 0,
    duplicates bigint      NOT NULL DEFAULT 0,
    conflicts  bigint      NOT NULL DEFAULT 0,
    rejected   bigint      NOT NULL DEFAULT 0,
    finished   boolean     NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN backfills.backfill IS 'Digest of the table and of how its columns are meant.';
COMMENT ON COLUMN backfills.position IS 'received_at, occurred_at and id of the last row that was dealt with, as texts.';

-- Moved together with the position: a row that was refused is told of, whenever the command was stopped.
CREATE TABLE backfill_problems (
    backfill   text   COLLATE "C" NOT NULL,
    row_number bigint NOT NULL,
    row_id     text,
    verdict    json   NOT NULL
);

CREATE INDEX backfill_problems_rows ON backfill_problems (backfill, row_number);

COMMENT ON COLUMN backfill_problems.row_number IS 'In the order of the backfill, from 1; 0: the row has no place in it.';

-- Where in Kafka the ledger's events are; how far they are there is the cursor `kafka`.
-- A row is what one topic's partition got of the events from first_sequence through last_sequence. All rows of one
-- last_sequence were acknowledged together, and ranges of different ones do not overlap: the rows whose last_sequence
-- is at most S hold every event up to the largest of them, each partition up to its largest last_offset among them.
-- Rows of neighbouring ranges are joined while these are small, so S need not stay the end of a range.
CREATE TABLE mirrored (
    first_sequence bigint  NOT NULL,
    last_sequence  bigint  NOT NULL,
    topic          text    COLLATE "C" NOT NULL,
    partition      integer NOT NULL,
    first_offset   bigint  NOT NULL,
    last_offset    bigint  NOT NULL,
    PRIMARY KEY (last_sequence, topic, partition),
    CHECK (first_sequence <= last_sequence AND first_offset <= last_offset)
);

COMMENT ON COLUMN mirrored.last_offset IS 'Its message is in the range; between the two there may be repeats after a crash.';

-- Where a topic ended when it was mirrored anew: what is outside of the ranges up to there counts no more.
CREATE TABLE mirror_repairs (
    topic      text    COLLATE "C" NOT NULL,
    partition  integer NOT NULL,
    end_offset bigint  NOT NULL,
    PRIMARY KEY (topic, partition)
);

-- How far a connector has told of a foreign view.
CREATE TABLE connections (
    connection text        COLLATE "C" PRIMARY KEY,
    name       text        NOT NULL,
    position   text,
    updated_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN connections.connection IS 'Digest of the view, of the stream it feeds and of how its columns are meant.';
COMMENT ON COLUMN connections.position IS 'Everything up to here is recorded, in the words of the connector; null: only a whole snapshot tells what is missing.';

CREATE TABLE tidelock_tables.statements (
    tenant_id        text   COLLATE "C" NOT NULL,
    "$key"           text   COLLATE "C" NOT NULL,
    metric           text   COLLATE "C" NOT NULL,
    customer_ref     text   COLLATE "C" NOT NULL,
    period_start     bigint NOT NULL,
    period_end       bigint NOT NULL,
    value            numeric(38, 9),
    total            numeric(38, 9),
    event_count      bigint NOT NULL,
    closed_sequence  bigint NOT NULL,
    definition       text   COLLATE "C" NOT NULL,
    source_timestamp bigint NOT NULL,
    PRIMARY KEY (tenant_id, "$key")
);

COMMENT ON COLUMN tidelock_tables.statements.definition IS 'The hash of the definition that the close named.';

-- Of a tenant, or of all (*).
CREATE TABLE tidelock_tables."meters$closed" (
    tenant_id        text   COLLATE "C" NOT NULL,
    "$key"           text   COLLATE "C" NOT NULL,
    metric           text   COLLATE "C" NOT NULL,
    closed_sequence  bigint NOT NULL,
    through          bigint NOT NULL,
    source_timestamp bigint NOT NULL,
    PRIMARY KEY (tenant_id, "$key")
);

-- The texts that counters and groups have seen. The key is that of the counter or group, with the text after it.
CREATE TABLE tidelock_tables."meters$distinct" (
    tenant_id        text    COLLATE "C" NOT NULL,
    "$key"           text    COLLATE "C" NOT NULL,
    metric           text    COLLATE "C" NOT NULL,
    in_value         boolean NOT NULL,
    in_total         boolean NOT NULL,
    source_timestamp bigint  NOT NULL,
    PRIMARY KEY (tenant_id, "$key")
);

COMMENT ON COLUMN tidelock_tables."meters$distinct".in_value IS 'Whether it counts for the value; in_total: for the total.';

-- Beside what is due in `fold_due`: one row for each meter that closes by itself.
CREATE TABLE fold_closings (
    metric     text   COLLATE "C" PRIMARY KEY,
    open_since bigint,
    close_due  bigint
);

COMMENT ON COLUMN fold_closings.open_since IS 'Start of its first period with an open counter; null: none is open.';
COMMENT ON COLUMN fold_closings.close_due IS 'When that period is to be closed.';
