-- Triggers as they are defined, and as far as they are evaluated.

-- What the last control event of every trigger says: written with that event, in one transaction. The table `triggers`
-- follows when whoever evaluates comes to the event.
CREATE TABLE trigger_definitions (
    name             text   COLLATE "C" PRIMARY KEY,
    tenant_id        text   COLLATE "C" NOT NULL,
    definition       json   NOT NULL,
    created_sequence bigint NOT NULL,
    changed_sequence bigint NOT NULL
);

CREATE INDEX trigger_definitions_tenant ON trigger_definitions (tenant_id, name);

COMMENT ON COLUMN trigger_definitions.created_sequence IS 'The control event that made it.';
COMMENT ON COLUMN trigger_definitions.changed_sequence IS 'The last one about it.';

-- Triggers that are enabled, as of the cursor `triggers`: what changes are held against.
CREATE TABLE trigger_watches (
    trigger_id bigint PRIMARY KEY,
    definition json   NOT NULL
);

COMMENT ON COLUMN trigger_watches.definition IS 'As its control event says, with the columns of its table then.';

-- In which triggers a row is that was deleted. There are members only of triggers that have `unmatch`: who is in
-- another is told by its rows.
CREATE INDEX trigger_members_key ON trigger_members (key);
