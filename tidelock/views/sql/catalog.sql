-- name: read_version
-- Whether the catalog has changed; no row before the fold has ever run.
SELECT version FROM fold_definitions;

-- name: read_definitions
-- What the tables are made by, and their shapes.
SELECT version, definitions, tables FROM fold_definitions;
