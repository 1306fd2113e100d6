-- name: clear
-- Nothing to deliver, and nobody to deliver to.
TRUNCATE outbox, delivery_attempts, triggers, trigger_secrets;

-- name: add_secrets
-- What the deliveries of a trigger are signed with.
INSERT INTO trigger_secrets (trigger_name, secrets) VALUES (%(name)s, %(secrets)s);

-- name: add_trigger
-- A trigger that is delivered.
INSERT INTO triggers (name, tenant_id, table_name, match, webhook, enabled, snapshot, created_sequence)
VALUES (%(name)s, 'default', 'bench', '{}', %(webhook)s, true, false, 0) RETURNING id;
