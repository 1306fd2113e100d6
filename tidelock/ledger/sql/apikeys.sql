-- name: insert_key
-- Records a new key by its hash.
INSERT INTO api_keys (id, key_hash, tenant_id, scopes, streams, label) VALUES (%s, %s, %s, %s, %s, %s);

-- name: list_keys
-- Every key that was ever made, oldest first.
SELECT id, tenant_id, scopes, streams, label, created_at, revoked_at FROM api_keys ORDER BY created_at, id;

-- name: revoke_key
-- Ends a key; the row stays, so that the installation never falls back to having no keys.
UPDATE api_keys SET revoked_at = now() WHERE id = %s AND revoked_at IS NULL;

-- name: find_key
-- What a key that was not revoked may do.
SELECT id, tenant_id, scopes, streams FROM api_keys WHERE key_hash = %s AND revoked_at IS NULL;

-- name: keys_exist
-- Whether any key was ever made.
SELECT EXISTS (SELECT FROM api_keys);
