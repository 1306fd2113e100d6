-- name: take_lease
-- Takes the lease of the fold for this session, unless another has it.
SELECT pg_try_advisory_lock(%(lease)s::bigint);

-- name: release_lease
-- Gives up a lease of this session.
SELECT pg_advisory_unlock(%(lease)s::bigint);

-- name: lease_held
-- Whether a session of this database has the lease. The system shows a bigint lock as its two halves.
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
        AND classid::bigint = %(lease)s::bigint >> 32 AND objid::bigint = %(lease)s::bigint & 4294967295
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
);
