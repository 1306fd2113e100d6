-- Closing a period: through which end meters are closed, what their counters were then, and when the next is due.

-- A counter that begins behind a close has folded nothing, and so has no watermark. What comes for it may be its last.
ALTER TABLE tidelock_tables.counters ALTER COLUMN watermark_ts DROP NOT NULL;
ALTER TABLE tidelock_tables.counters ADD COLUMN closed_last numeric(38, 9);
ALTER TABLE tidelock_tables.counters ADD COLUMN closed_last_at bigint;

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

-- Beside what is due in `fold_due`: one row for each meter that closes by itself.
CREATE TABLE fold_closings (
    metric     text   COLLATE "C" PRIMARY KEY,
    open_since bigint,
    close_due  bigint
);

COMMENT ON COLUMN fold_closings.open_since IS 'Start of its first period with an open counter; null: none is open.';
COMMENT ON COLUMN fold_closings.close_due IS 'When that period is to be closed.';
