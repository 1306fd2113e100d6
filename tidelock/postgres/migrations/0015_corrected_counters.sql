-- Corrections take events out of counters: a total need not cover all that the value does.

ALTER TABLE tidelock_tables.counters ADD COLUMN parted boolean;
ALTER TABLE tidelock_tables.counter_groups ADD COLUMN parted boolean;

COMMENT ON COLUMN tidelock_tables.counters.parted IS
    'True since a correction: adj_max, adj_min and closed_last are those of the whole total.';
