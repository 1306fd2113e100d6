-- name: session
-- For a session that delivers: the outbox grows and shrinks faster than its statistics follow, and every question here
-- is answered by one index. Where Postgres could take another, which it may believe to be short, the question is put
-- so that it cannot: the index of chains goes with `status = 'pending'` written as it is, and with nothing else.
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;

-- name: triggers
-- The triggers that are delivered. One that was disabled or ended is none of them at once, although what its event
-- means for transitions may be evaluated later.
SELECT id, triggers.name, webhook, secrets
FROM triggers JOIN trigger_secrets ON trigger_name = triggers.name
JOIN trigger_definitions AS latest
    ON latest.name = triggers.name AND latest.created_sequence = triggers.created_sequence
WHERE enabled AND halted_at IS NULL AND (latest.definition ->> 'enabled')::boolean;

-- name: read
-- What came after a position, of each trigger so much at most. Of a chain only the first is taken, unless it waits for
-- its next attempt; the others are told of too, so that they are not read again.
SELECT found.trigger_id, found.id, found.position, found.key, found.shard, found.event_id, found.event_type,
    found.source_timestamp, found.failures, extract(epoch FROM now() - found.queued_at)::float8,
    earlier.exists IS NULL AND found.next_attempt_at IS NULL,
    CASE WHEN earlier.exists IS NULL AND pg_column_size(found.data) <= %(inline_bytes_max)s THEN found.data::text END
FROM unnest(%(trigger_ids)s::bigint[], %(after)s::bigint[], %(room)s::integer[]) AS lane (trigger_id, after, room)
CROSS JOIN LATERAL (
    SELECT * FROM outbox
    WHERE trigger_id = lane.trigger_id AND status = (SELECT 'pending') AND position > lane.after
        AND shard = ANY(%(shards)s)
    ORDER BY position LIMIT lane.room
) AS found
LEFT JOIN LATERAL (
    SELECT true FROM outbox
    WHERE trigger_id = found.trigger_id AND key = found.key AND status = 'pending' AND position < found.position
    LIMIT 1
) AS earlier (exists) ON true;

-- name: read_due
-- What is to be tried again, of each trigger so much at most, after what was read of that before.
SELECT found.trigger_id, found.id, found.position, found.key, found.shard, found.event_id, found.event_type,
    found.source_timestamp, found.failures, extract(epoch FROM now() - found.queued_at)::float8,
    found.next_attempt_at,
    CASE WHEN pg_column_size(found.data) <= %(inline_bytes_max)s THEN found.data::text END
FROM unnest(%(trigger_ids)s::bigint[], %(after)s::timestamptz[], %(after_ids)s::bigint[], %(room)s::integer[])
    AS lane (trigger_id, after, after_id, room)
CROSS JOIN LATERAL (
    SELECT * FROM outbox
    WHERE trigger_id = lane.trigger_id AND status = 'pending' AND next_attempt_at IS NOT NULL
        AND next_attempt_at <= now() AND (next_attempt_at, id) > (lane.after, lane.after_id)
        AND shard = ANY(%(shards)s)
    ORDER BY next_attempt_at, id LIMIT lane.room
) AS found;

-- name: data
-- The row of one transition.
SELECT data::text FROM outbox WHERE id = %s;

-- name: settle
-- What came of attempts, and their history.
WITH given AS (
    SELECT * FROM json_to_recordset(%(settlements)s::json) AS given (
        id bigint, position bigint, status text, failures integer, delay_s float8, sent_at_s float8, seconds float8,
        outcome text, http_status integer, response text
    )
), settled AS (
    UPDATE outbox SET status = given.status, failures = given.failures,
        attempts = attempts + 1,
        next_attempt_at = now() + given.delay_s * interval '1 second',
        settled_at = CASE WHEN given.status <> 'pending' THEN now() END
    FROM given
    WHERE outbox.id = given.id AND outbox.position = given.position AND outbox.status NOT IN ('delivered', 'dead')
    RETURNING outbox.id, outbox.attempts, given.sent_at_s, given.seconds, given.outcome, given.http_status,
        given.response
)
INSERT INTO delivery_attempts (outbox_id, number, sent_at, seconds, outcome, http_status, response)
SELECT id, attempts, to_timestamp(sent_at_s), seconds, outcome, http_status, response FROM settled;

-- name: following
-- What comes next in chains, of which the first were just settled.
SELECT found.trigger_id, found.id, found.position, found.key, found.shard, found.event_id, found.event_type,
    found.source_timestamp, found.failures, extract(epoch FROM now() - found.queued_at)::float8,
    found.next_attempt_at IS NULL,
    CASE WHEN pg_column_size(found.data) <= %(inline_bytes_max)s THEN found.data::text END
FROM unnest(%(trigger_ids)s::bigint[], %(keys)s::text[]) AS chain (trigger_id, key)
CROSS JOIN LATERAL (
    SELECT * FROM outbox
    WHERE trigger_id = chain.trigger_id AND key = chain.key AND status = 'pending'
    ORDER BY position LIMIT 1
) AS found;

-- name: halt
-- Sends nothing more of triggers whose receivers are gone.
UPDATE triggers SET halted_at = now() WHERE id = ANY(%(trigger_ids)s) AND halted_at IS NULL;

-- name: halted
-- Triggers that are halted, and of which the ledger does not know yet.
SELECT name FROM triggers WHERE halted_at IS NOT NULL AND halted_sequence IS NULL AND enabled;

-- name: record_halt
-- The control event that disables a halted trigger.
UPDATE triggers SET halted_sequence = %(sequence)s
WHERE name = %(name)s AND halted_at IS NOT NULL AND halted_sequence IS NULL;
