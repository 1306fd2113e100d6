-- name: insert_key
-- Records a new key by its hash, and tells every server.
WITH made AS (
    INSERT INTO api_keys (id, key_hash, tenant_id, scopes, streams, label) VALUES (%s, %s, %s, %s, %s, %s) RETURNING id
)
SELECT pg_notify('tidelock_keys', id) FROM made;

-- name: list_keys
-- Every key that was ever made, oldest first.
SELECT id, tenant_id, scopes, streams, label, created_at, revoked_at FROM api_keys ORDER BY created_at, id;

-- name: revoke_key
-- Ends a key and tells every server; the row stays, so that the installation never falls back to having no keys.
WITH ended AS (UPDATE api_keys SET revoked_at = now() WHERE id = %s AND revoked_at IS NULL RETURNING id)
SELECT pg_notify('tidelock_keys', id) FROM ended;

-- name: find_key
-- What a key that was not revoked may do.
SELECT id, tenant_id, scopes, streams FROM api_keys WHERE key_hash = %s AND revoked_at IS NULL;

-- name: keys_exist
-- Whether any key was ever made.
SELECT EXISTS (SELECT FROM api_keys);

-- name: count_keys
-- Changes whenever a key is made or revoked.
SELECT count(*), count(revoked_at) FROM api_keys;
