-- name: announce
-- Says that this process delivers, and forgets those that have long been silent.
WITH gone AS (
    DELETE FROM outbox_owners WHERE owner <> %(owner)s AND expires_at < now() - interval '1 minute'
)
INSERT INTO outbox_owners (owner, expires_at) VALUES (%(owner)s, now() + %(lease_s)s * interval '1 second')
ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at;

-- name: others
-- How many other processes deliver.
SELECT count(*) FROM outbox_owners WHERE owner <> %(owner)s AND expires_at > now();

-- name: release
-- Releases shards for other processes.
UPDATE outbox_shards SET owner = NULL, expires_at = '-infinity' WHERE owner = %(owner)s AND shard = ANY(%(shards)s);

-- name: renew
-- The shards that this process still has, for a while longer.
UPDATE outbox_shards SET expires_at = now() + %(lease_s)s * interval '1 second' WHERE owner = %(owner)s
RETURNING shard;

-- name: take
-- Some of the shards that nobody has. Of those who ask at once each gets others.
UPDATE outbox_shards SET owner = %(owner)s, expires_at = now() + %(lease_s)s * interval '1 second'
WHERE shard IN (
    SELECT shard FROM outbox_shards WHERE expires_at < now() ORDER BY shard LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
RETURNING shard;

-- name: leave
-- Says that this process delivers no more.
WITH released AS (UPDATE outbox_shards SET owner = NULL, expires_at = '-infinity' WHERE owner = %(owner)s)
DELETE FROM outbox_owners WHERE owner = %(owner)s;
