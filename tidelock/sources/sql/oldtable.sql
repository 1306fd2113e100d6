-- name: session
-- Texts of instants are read again when a backfill goes on: they must not depend on the server's settings.
SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO, YMD', false),
    set_config('statement_timeout', '0', false), set_config('idle_in_transaction_session_timeout', '0', false);

-- name: find_table
-- The table of a name, with or without its schema, as SQL finds it or as it is spelled.
SELECT pg_class.oid, nspname, relname
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
    AND lower(%(name)s) IN (lower(relname), lower(nspname || '.' || relname), lower(quote_ident(relname)),
        lower(quote_ident(nspname) || '.' || quote_ident(relname)))
ORDER BY %(name)s IN (relname, nspname || '.' || relname) DESC, pg_table_is_visible(pg_class.oid) DESC, nspname
LIMIT 1;

-- name: table_names
-- The tables that could have been meant.
SELECT CASE nspname WHEN 'public' THEN relname ELSE nspname || '.' || relname END
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname NOT IN ('pg_catalog', 'information_schema')
    AND nspname NOT LIKE 'pg\_toast%%'
ORDER BY 1 LIMIT 1000;

-- name: columns
-- The columns of a table, in their order, with their types.
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum;
