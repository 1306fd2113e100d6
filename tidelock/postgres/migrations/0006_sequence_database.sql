-- Numbers from a sequence database: a commit may leave numbers out before it, and says so.

ALTER TABLE commits ADD COLUMN skipped bigint NOT NULL DEFAULT 0 CHECK (skipped >= 0);

COMMENT ON COLUMN commits.skipped IS 'Numbers left out so far, those right before this commit included.';

-- How many events there are through a commit: what is behind or ahead is counted without reading events.
CREATE UNIQUE INDEX commits_events ON commits ((last_sequence - skipped));

ALTER TABLE ledger_head
    ADD COLUMN skipped         bigint NOT NULL DEFAULT 0,
    ADD COLUMN sequence_source text   NOT NULL DEFAULT 'local' CHECK (sequence_source IN ('local', 'remote')),
    ADD COLUMN sequence_since  bigint NOT NULL DEFAULT 0;

COMMENT ON COLUMN ledger_head.sequence_source IS 'Where the last commit had its numbers from.';
COMMENT ON COLUMN ledger_head.sequence_since IS 'Source timestamp of the first commit that had them from there; 0: always.';
