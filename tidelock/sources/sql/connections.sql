-- name: read_connection
-- How far a connector has told of its view; no row: it has never begun.
SELECT position FROM connections WHERE connection = %s;

-- name: move_connection
-- Remembers how far a connector has told of its view.
INSERT INTO connections (connection, name, position) VALUES (%(connection)s, %(name)s, %(position)s)
ON CONFLICT (connection) DO UPDATE SET position = excluded.position, updated_at = now();

-- name: take_stream
-- Takes a tenant's stream for the connector of this session, unless another has it.
SELECT pg_try_advisory_lock(hashtextextended(%s, 0));

-- name: make_spool
-- What was told of one moment, while it is not complete.
CREATE TEMPORARY TABLE IF NOT EXISTS connect_told (
    row_key text COLLATE "C" PRIMARY KEY, op text NOT NULL, data text NOT NULL
);

-- name: make_differences
-- What a whole moment says of rows beside what the ledger has of them.
CREATE TEMPORARY TABLE IF NOT EXISTS connect_differences (
    row_key text COLLATE "C" PRIMARY KEY, told text, recorded text, source text
);

-- name: clear_spool
-- Forgets a moment.
TRUNCATE connect_told, connect_differences;

-- name: fill_spool
-- Adds to a moment.
COPY connect_told (row_key, op, data) FROM STDIN;

-- name: compare
-- Compares a whole moment with the latest rows of the ledger, not of the fold, which may lag behind or have made an
-- error row of an event.
INSERT INTO connect_differences
SELECT row_key, told.data, recorded.data, recorded.source
FROM connect_told AS told FULL JOIN (
    SELECT row_key, data, source FROM (
        SELECT DISTINCT ON (row_key) row_key, op, data::text AS data, source
        FROM events
        WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND row_key IS NOT NULL
        ORDER BY row_key, ingress_sequence DESC
    ) AS latest
    WHERE op <> 'delete'
) AS recorded USING (row_key)
WHERE told.data IS DISTINCT FROM recorded.data;

-- name: count_strangers
-- Rows that would be deleted although they never came by this connector.
SELECT count(*), min(row_key) FROM connect_differences WHERE told IS NULL AND source IS DISTINCT FROM %s;

-- name: spooled_page
-- The next changes of a moment, by key.
SELECT row_key, op, data FROM connect_told WHERE %(after)s::text IS NULL OR row_key > %(after)s
ORDER BY row_key LIMIT %(limit)s;

-- name: differences_page
-- The next differences, by key; a row that the moment does not have was deleted.
SELECT row_key, CASE WHEN told IS NULL THEN 'delete' ELSE 'upsert' END, coalesce(told, recorded)
FROM connect_differences WHERE %(after)s::text IS NULL OR row_key > %(after)s
ORDER BY row_key LIMIT %(limit)s;

-- name: last_told
-- The latest time that a connector has recorded a row at; none: null.
SELECT max(occurred_at) FROM events WHERE tenant_id = %(tenant)s AND stream = %(stream)s AND source = %(source)s;
