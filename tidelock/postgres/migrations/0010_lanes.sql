-- Lanes: a large range is folded by several executors, and the changes of each are in order by themselves.

ALTER TABLE changes ADD COLUMN lane integer NOT NULL DEFAULT 0;
ALTER TABLE changes DROP CONSTRAINT changes_pkey;
ALTER TABLE changes ADD PRIMARY KEY (last_sequence, table_name, lane, part);

COMMENT ON COLUMN changes.lane IS 'The parts of one lane are in order; whoever reads a range merges its lanes.';
