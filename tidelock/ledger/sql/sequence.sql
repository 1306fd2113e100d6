-- name: find_sequence
-- Whether the sequence is there; asked first, for who may use it need not be who may make it.
SELECT to_regclass('tidelock_sequence') IS NOT NULL;

-- name: make_sequence
-- Makes the sequence, once, however many ledgers come for the first time.
SELECT pg_advisory_xact_lock(7140331586207113002);
CREATE SEQUENCE IF NOT EXISTS tidelock_sequence AS bigint;

-- name: limit_session
-- What nobody waits for any more shall not go on.
SELECT set_config('statement_timeout', %s, false);

-- name: reserve
-- Takes a block of numbers that follows both the sequence and a ledger's head; bound on the client, one round trip. The
-- lock is a statement of its own and is held to the end of the next: no other ledger comes between the two calls, so
-- the sequence never goes back, and nobody gets a number of the block.
SELECT pg_advisory_xact_lock(7140331586207113002);
SELECT setval('tidelock_sequence', greatest(nextval('tidelock_sequence'), %(head)s + 1) + %(count)s - 1);

-- name: last_number
-- How far the sequence is.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tidelock_sequence;
