-- The fold: its tables, in a schema of their own so that a stream may be named like a table of the ledger. The schema is
-- not named like a role: a role's own schema comes first on its search path, and would hide the ledger's tables.

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
    agg_sum          numeric(38, 9) NOT NULL,
    agg_count        bigint         NOT NULL,
    agg_max          numeric(38, 9),
    agg_min          numeric(38, 9),
    agg_last         numeric(38, 9),
    watermark_ts     bigint         NOT NULL,
    value            numeric(38, 9),
    total            numeric(38, 9),
    source_timestamp bigint         NOT NULL,
    last_at          bigint,
    adj_sum          numeric(38, 9) NOT NULL,
    adj_count        bigint         NOT NULL,
    adj_max          numeric(38, 9),
    adj_min          numeric(38, 9),
    PRIMARY KEY (tenant_id, "$key")
);

CREATE TABLE tidelock_tables.counter_groups (
    tenant_id        text           COLLATE "C" NOT NULL,
    "$key"           text           COLLATE "C" NOT NULL,
    metric           text           COLLATE "C" NOT NULL,
    customer_ref     text           COLLATE "C" NOT NULL,
    period_start     bigint         NOT NULL,
    group_key        text           COLLATE "C",
    agg_sum          numeric(38, 9) NOT NULL,
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
    PRIMARY KEY (tenant_id, "$key")
);

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

-- One row per table, range and part: an Arrow segment of (tenant_id, key, source_timestamp, old, new), compressed.
CREATE TABLE changes (
    table_name             text        COLLATE "C" NOT NULL,
    last_sequence          bigint      NOT NULL,
    part                   integer     NOT NULL,
    first_source_timestamp bigint      NOT NULL,
    last_source_timestamp  bigint      NOT NULL,
    rows                   integer     NOT NULL,
    recorded_at            timestamptz NOT NULL DEFAULT now(),
    segment                bytea       STORAGE EXTERNAL NOT NULL,
    PRIMARY KEY (last_sequence, table_name, part)
);

CREATE INDEX changes_by_time ON changes (last_source_timestamp);

-- Changes through this source timestamp may have been pruned.
CREATE TABLE changes_pruned (
    only_row         boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    source_timestamp bigint  NOT NULL DEFAULT 0
);

INSERT INTO changes_pruned DEFAULT VALUES;
