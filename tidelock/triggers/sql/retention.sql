-- name: prune
-- Looks at some rows after an id, and removes those that were settled long ago, with the history of their attempts.
-- Gives the last id looked at, how many were removed, and whether later ones may be old as well.
WITH looked AS MATERIALIZED (
    SELECT id, queued_at < now() - %(retention_us)s * interval '1 microsecond' AS old, status <> 'pending'
        AND settled_at < now() - %(retention_us)s * interval '1 microsecond' AS removable
    FROM outbox WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
), gone AS (
    DELETE FROM outbox WHERE id IN (SELECT id FROM looked WHERE removable) RETURNING id
), history AS (
    DELETE FROM delivery_attempts WHERE outbox_id IN (SELECT id FROM gone)
)
SELECT id, (SELECT count(*) FROM gone), old AND (SELECT count(*) FROM looked) = %(limit)s
FROM looked ORDER BY id DESC LIMIT 1;

-- name: prune_orphans
-- Removes some of what triggers that are not there any more have left.
WITH RECURSIVE known AS (
    (SELECT trigger_id FROM outbox ORDER BY trigger_id LIMIT 1)
    UNION ALL
    SELECT (SELECT trigger_id FROM outbox WHERE trigger_id > known.trigger_id ORDER BY trigger_id LIMIT 1)
    FROM known WHERE known.trigger_id IS NOT NULL
), orphans AS (
    SELECT outbox.id FROM known JOIN outbox USING (trigger_id)
    WHERE NOT EXISTS (SELECT FROM triggers WHERE triggers.id = known.trigger_id)
    LIMIT %(limit)s
), gone AS (
    DELETE FROM outbox WHERE id IN (SELECT id FROM orphans) RETURNING id
), history AS (
    DELETE FROM delivery_attempts WHERE outbox_id IN (SELECT id FROM gone)
)
SELECT count(*) FROM gone;
