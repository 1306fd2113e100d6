-- Backfills: how far an older table was recorded, and which of its rows could not be.

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
