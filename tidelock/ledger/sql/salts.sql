-- name: lock_salts
-- Serialises changes of the salts with each other and with commits; tells whether anything was recorded.
SELECT ingress_sequence FROM ledger_head FOR UPDATE;

-- name: read_salts
-- The salts, the one that derives first.
SELECT salt FROM salts ORDER BY position;

-- name: read_version
-- The version of the list of salts.
SELECT salts_version FROM ledger_head;

-- name: insert_salt
-- Adds a salt behind the others; the very first one derives.
INSERT INTO salts (position, salt) SELECT count(*), %s FROM salts;

-- name: replace_salt
-- Puts another salt in the place of the one that derives.
UPDATE salts SET salt = %s WHERE position = 0;

-- name: lift_salts
-- Clears the positions, far above any there can be: a position is unique at every moment of a statement.
UPDATE salts SET position = position + 1000000000;

-- name: order_salts
-- Reassigns the positions: one salt moves to the front, the others keep their order after it.
UPDATE salts SET position = ordered.position
FROM (
    SELECT salt, row_number() OVER (ORDER BY position <> %s + 1000000000, position) - 1 AS position FROM salts
) AS ordered
WHERE salts.salt = ordered.salt;

-- name: next_version
-- Tells every process at its next commit that the salts changed.
UPDATE ledger_head SET salts_version = salts_version + 1;
