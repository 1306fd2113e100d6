-- name: list
-- Triggers of a tenant, or of all, by name.
SELECT definition::text, created_sequence, changed_sequence FROM trigger_definitions
WHERE (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s) AND name > %(after)s
ORDER BY name LIMIT %(limit)s;

-- name: read
-- One trigger.
SELECT definition::text, created_sequence, changed_sequence FROM trigger_definitions WHERE name = %(name)s;

-- name: insert
-- A new trigger.
INSERT INTO trigger_definitions (name, tenant_id, definition, created_sequence, changed_sequence)
VALUES (%(name)s, %(tenant)s, %(definition)s, %(sequence)s, %(sequence)s);

-- name: update
-- What a trigger is from here on, if it still is what it was thought to be.
UPDATE trigger_definitions SET definition = %(definition)s, changed_sequence = %(sequence)s
WHERE name = %(name)s AND changed_sequence = %(known)s;

-- name: delete
-- The end of a trigger, if it still is what it was thought to be.
DELETE FROM trigger_definitions WHERE name = %(name)s AND changed_sequence = %(known)s;

-- name: put_secrets
-- The secrets of a trigger.
INSERT INTO trigger_secrets (trigger_name, secrets) VALUES (%(name)s, %(secrets)s)
ON CONFLICT (trigger_name) DO UPDATE SET secrets = excluded.secrets;

-- name: replace_secrets
-- Other secrets for a trigger, if it is still the one that was made then: names are given again, also to others.
WITH known AS (
    SELECT name FROM trigger_definitions WHERE name = %(name)s AND created_sequence = %(created)s FOR SHARE
)
UPDATE trigger_secrets SET secrets = %(secrets)s FROM known WHERE trigger_name = known.name;

-- name: tell
-- Lets those who deliver look again.
SELECT pg_notify('tidelock_triggers', '');

-- name: read_secrets
-- The secrets of a trigger, newest first.
SELECT secrets FROM trigger_secrets WHERE trigger_name = %(name)s;

-- name: begin
-- From the first trigger on there is a reader of changes, and what it has not read is kept.
INSERT INTO cursors (name, sequence) VALUES ('triggers', %(sequence)s) ON CONFLICT DO NOTHING;

-- name: evaluated
-- Through which sequence triggers are evaluated.
SELECT coalesce((SELECT sequence FROM cursors WHERE name = 'triggers'), 0);
