-- name: look
-- Through which sequence triggers are evaluated, and through which the tables are folded. The row's lock is held to the
-- end of the transaction: nobody else evaluates meanwhile. No row: there never was a trigger.
SELECT evaluated.sequence, coalesce((SELECT sequence FROM cursors WHERE name = 'fold'), 0)
FROM cursors AS evaluated WHERE evaluated.name = 'triggers' FOR UPDATE OF evaluated;

-- name: move
-- Moves the cursor, if it is where it was thought to be.
UPDATE cursors SET sequence = %(hi)s WHERE name = 'triggers' AND sequence = %(lo)s;

-- name: next_event
-- The next control event about triggers.
SELECT first_sequence, events.source_timestamp, events.data::text
FROM commits JOIN events ON events.ingress_sequence = first_sequence
WHERE control AND first_sequence > %(after)s AND first_sequence <= %(through)s
    AND events.data ->> 'type' = 'trigger'
ORDER BY first_sequence LIMIT 1;

-- name: history
-- Every control event about one trigger, through a sequence.
SELECT first_sequence, events.source_timestamp, events.data::text
FROM commits JOIN events ON events.ingress_sequence = first_sequence
WHERE control AND first_sequence <= %(through)s
    AND events.data ->> 'type' = 'trigger' AND events.data ->> 'name' = %(name)s
ORDER BY first_sequence;

-- name: watches
-- The triggers that are enabled, as of the cursor.
SELECT trigger_id, definition::text FROM trigger_watches ORDER BY trigger_id;

-- name: put_trigger
-- What delivery needs to know of a trigger; one whose receiver was gone no longer is.
INSERT INTO triggers (name, tenant_id, table_name, match, unmatch, webhook, enabled, snapshot, created_sequence)
VALUES (%(name)s, %(tenant_id)s, %(table)s, %(match)s, %(unmatch)s, %(webhook)s, %(enabled)s, %(snapshot)s,
    %(sequence)s)
ON CONFLICT (name) DO UPDATE SET tenant_id = excluded.tenant_id, table_name = excluded.table_name,
    match = excluded.match, unmatch = excluded.unmatch, webhook = excluded.webhook, enabled = excluded.enabled,
    snapshot = excluded.snapshot, halted_at = NULL, halted_sequence = NULL
RETURNING id;

-- name: remove_trigger
-- Forgets a trigger; what it had still to tell goes with the next tidying.
DELETE FROM triggers WHERE name = %(name)s;

-- name: remove_secrets
-- Forgets the secrets of a trigger, unless there is another of its name by now.
DELETE FROM trigger_secrets WHERE trigger_name = %(name)s
    AND NOT EXISTS (SELECT FROM trigger_definitions WHERE name = %(name)s);

-- name: put_watch
-- A trigger that is enabled from here on.
INSERT INTO trigger_watches (trigger_id, definition) VALUES (%(id)s, %(definition)s)
ON CONFLICT (trigger_id) DO UPDATE SET definition = excluded.definition;

-- name: remove_watch
-- A trigger that is not any more.
DELETE FROM trigger_watches WHERE trigger_id = %(id)s;

-- name: members
-- Which of these triggers these keys are in.
SELECT trigger_id, key FROM trigger_members WHERE key = ANY(%(keys)s) AND trigger_id = ANY(%(triggers)s);

-- name: add_members
-- Keys that entered.
INSERT INTO trigger_members (trigger_id, key, source_timestamp)
SELECT * FROM unnest(%(triggers)s::bigint[], %(keys)s::text[], %(times)s::bigint[]);

-- name: remove_members
-- Keys that left.
DELETE FROM trigger_members USING unnest(%(triggers)s::bigint[], %(keys)s::text[]) AS gone (trigger_id, key)
WHERE trigger_members.trigger_id = gone.trigger_id AND trigger_members.key = gone.key;

-- name: clear_members
-- All keys of a trigger.
DELETE FROM trigger_members WHERE trigger_id = %(id)s;

-- name: frontier
-- Through which sequence the tables are folded, and what they look like.
SELECT coalesce((SELECT sequence FROM cursors WHERE name = 'fold'), 0), (SELECT tables FROM fold_definitions);

-- name: times
-- Source timestamps of the first event at or after one sequence, and of the last at or before another.
SELECT (SELECT source_timestamp FROM events WHERE ingress_sequence >= %(first)s ORDER BY ingress_sequence LIMIT 1),
    (SELECT source_timestamp FROM events WHERE ingress_sequence <= %(last)s ORDER BY ingress_sequence DESC LIMIT 1);

-- name: trigger_id
-- By which number a trigger is known, if there is one of that name.
SELECT id FROM triggers WHERE name = %(name)s;

-- name: evaluated_through
-- Through which sequences triggers are evaluated and the tables are folded.
SELECT coalesce((SELECT sequence FROM cursors WHERE name = 'triggers'), 0),
    coalesce((SELECT sequence FROM cursors WHERE name = 'fold'), 0);
