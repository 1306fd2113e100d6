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
