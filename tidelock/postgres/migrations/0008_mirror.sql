-- The mirror: where in Kafka the ledger's events are. How far it is complete is the cursor `kafka`.

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
