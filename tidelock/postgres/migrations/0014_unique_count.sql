-- Distinct values of meters: the texts that each counter and group has seen.

-- A counter of distinct texts has a value, and no sum.
ALTER TABLE tidelock_tables.counters ALTER COLUMN agg_sum DROP NOT NULL;
ALTER TABLE tidelock_tables.counter_groups ALTER COLUMN agg_sum DROP NOT NULL;

-- The key is that of the counter or group, with the text after it.
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
