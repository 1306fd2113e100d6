-- name: list
-- Events of a trigger, newest first, before a position.
SELECT position, event_id, event_type, key, source_timestamp, status, attempts, next_attempt_at, queued_at, settled_at,
    last.outcome, last.http_status, last.response
FROM outbox LEFT JOIN delivery_attempts AS last ON last.outbox_id = outbox.id AND last.number = outbox.attempts
WHERE trigger_id = (SELECT id FROM triggers WHERE name = %(trigger)s)
    AND status = ANY(%(statuses)s) AND position < %(before)s
ORDER BY position DESC LIMIT %(limit)s;

-- name: one
-- What became of one event of a trigger.
SELECT position, event_id, event_type, key, source_timestamp, status, attempts, next_attempt_at, queued_at, settled_at,
    last.outcome, last.http_status, last.response
FROM outbox LEFT JOIN delivery_attempts AS last ON last.outbox_id = outbox.id AND last.number = outbox.attempts
WHERE event_id = %(event_id)s AND trigger_id = (SELECT id FROM triggers WHERE name = %(trigger)s);

-- name: event
-- One event of a trigger, with its row.
SELECT id, data::text FROM outbox
WHERE event_id = %(event_id)s AND trigger_id = (SELECT id FROM triggers WHERE name = %(trigger)s);

-- name: attempts
-- What came of the attempts to deliver an event.
SELECT number, sent_at, seconds, outcome, http_status, response
FROM delivery_attempts WHERE outbox_id = %(outbox_id)s ORDER BY number DESC LIMIT %(limit)s;

-- name: redeliver
-- Queues events again, in their order: the dead ones, or those that are named unless they are pending.
WITH again AS (
    SELECT id, nextval('outbox_position') AS position FROM (
        SELECT id FROM outbox
        WHERE trigger_id = (SELECT id FROM triggers WHERE name = %(trigger)s)
            AND CASE WHEN %(event_ids)s::text[] IS NULL THEN status = 'dead'
                ELSE status <> 'pending' AND event_id = ANY(%(event_ids)s) END
        ORDER BY outbox.position
        FOR UPDATE
    ) AS wanted
), queued AS (
    UPDATE outbox SET position = again.position, status = 'pending', failures = 0, next_attempt_at = NULL,
        queued_at = now(), settled_at = NULL
    FROM again WHERE outbox.id = again.id
    RETURNING trigger_id
)
SELECT count(*), min(trigger_id) FROM queued;

-- name: depth
-- How much is pending and how much is dead, and how long the oldest that is pending has waited.
WITH pending AS (
    SELECT count(*) AS rows, extract(epoch FROM now() - min(queued_at))::float8 AS age_s
    FROM triggers JOIN outbox ON trigger_id = triggers.id AND status = 'pending'
), dead AS (
    SELECT count(*) AS rows FROM triggers JOIN outbox ON trigger_id = triggers.id AND status = 'dead'
)
SELECT pending.rows, dead.rows, coalesce(pending.age_s, 0) FROM pending, dead;
