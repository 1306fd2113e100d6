-- name: clear
-- Nothing to deliver, and nobody to deliver to.
TRUNCATE outbox, delivery_attempts, triggers, trigger_secrets, trigger_definitions;

-- name: add_secrets
-- What the deliveries of a trigger are signed with.
INSERT INTO trigger_secrets (trigger_name, secrets) VALUES (%(name)s, %(secrets)s);

-- name: add_trigger
-- A trigger that is delivered.
WITH defined AS (
    INSERT INTO trigger_definitions (name, tenant_id, definition, created_sequence, changed_sequence)
    VALUES (%(name)s, 'default', '{"enabled": true}', 0, 0)
)
INSERT INTO triggers (name, tenant_id, table_name, match, webhook, enabled, snapshot, created_sequence)
VALUES (%(name)s, 'default', 'bench', '{}', %(webhook)s, true, false, 0) RETURNING id;
