-- Counters are replaced again and again: a new version that fits on its row's page needs no new entry in an index. Pages
-- that are full already fill as before.

ALTER TABLE tidelock_tables.counters SET (fillfactor = 70);
ALTER TABLE tidelock_tables.counter_groups SET (fillfactor = 70);
