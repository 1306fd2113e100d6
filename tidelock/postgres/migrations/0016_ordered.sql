-- Ordered output is found by sequence: Postgres keeps an index of numbers with half the work of one of texts. Tables of
-- many rows are indexed anew here, which takes a second for each million.

DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT it ->> 'name' AS name, keys.conname AS key
        FROM fold_definitions, json_array_elements(tables) AS it
        JOIN pg_constraint AS keys
            ON keys.contype = 'p' AND keys.conrelid = to_regclass(format('tidelock_tables.%I', it ->> 'name'))
        WHERE (it -> 'indexes')::jsonb = '[["tenant_id", "position"]]'
    LOOP
        EXECUTE format('ALTER TABLE tidelock_tables.%I DROP CONSTRAINT %I, ADD PRIMARY KEY (ingress_sequence)',
            found.name, found.key);
    END LOOP;
END
$$;
