-- Connections: how far a connector has told of a foreign view.

CREATE TABLE connections (
    connection text        COLLATE "C" PRIMARY KEY,
    name       text        NOT NULL,
    position   text,
    updated_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN connections.connection IS 'Digest of the view, of the stream it feeds and of how its columns are meant.';
COMMENT ON COLUMN connections.position IS 'Everything up to here is recorded, in the words of the connector; null: only a whole snapshot tells what is missing.';
