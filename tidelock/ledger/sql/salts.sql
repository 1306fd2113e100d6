-- name: lock_salts
-- Serialises changes of the salts with each other and with commits.
SELECT 1 FROM ledger_head FOR UPDATE;

-- name: read_salts
-- The salts, the one that derives first.
SELECT salt FROM salts ORDER BY position;

-- name: read_version
-- The version of the list of salts.
SELECT salts_version FROM ledger_head;

-- name: insert_salt
-- Adds a salt behind the others; the very first one derives.
INSERT INTO salts (position, salt) SELECT count(*), %s FROM salts;

-- name: promote_salt
-- Moves one salt to the front; the others keep their order behind it.
WITH ordered AS (
    SELECT salt, row_number() OVER (ORDER BY position <> %s, position) - 1 AS position FROM salts
), moved AS (
    DELETE FROM salts
)
INSERT INTO salts (position, salt) SELECT position, salt FROM ordered;

-- name: next_version
-- Tells every process at its next commit that the salts changed.
UPDATE ledger_head SET salts_version = salts_version + 1;
