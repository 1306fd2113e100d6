"""Statements on the fold's tables in Postgres. They are made from the tables' shapes, and every name is quoted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidelock.canonical import canonical_hash
from tidelock.columns import STRING, ColumnType
from tidelock.tables import ALWAYS, KEY, SCHEMA, Table
from tidelock.where.sql import POSTGRES, literal

_TYPES = {
    "string": 'text COLLATE "C"',
    "int": "integer",
    "bigint": "bigint",
    "double": "double precision",
    "boolean": "boolean",
    "timestamp": "bigint",
    "date": "date",
    "json": "json",
}

#: of a page of rows that are replaced: a new version fits beside the old one, and no index has to know of it
_FILLFACTOR = 70

quoted = POSTGRES.quoted
_META = ("tenant_id", KEY, "source_timestamp")


def placed(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(table)}"


def column_type(column: ColumnType) -> str:
    return f"numeric({column.precision},{column.scale})" if column.name == "decimal" else _TYPES[column.name]


def create_table(schema: str, table: Table) -> str:
    """A table that definitions ask for. Its columns may all be null: what an event does not have is null."""
    columns = ", ".join(f"{quoted(name)} {column_type(type_)}" for name, type_ in table.stored.items())
    return (
        f'CREATE TABLE {placed(schema, table.name)} (tenant_id text COLLATE "C" NOT NULL, '
        f'{quoted(KEY)} text COLLATE "C" NOT NULL, source_timestamp bigint NOT NULL, {columns}'
        + (f", PRIMARY KEY ({_found_by(table)})" if table.keyed else "")
        + f") WITH (fillfactor = {100 if table.appended else _FILLFACTOR})"
    )


def _found_by(table: Table) -> str:
    # A sequence identifies an event of any tenant.
    return "ingress_sequence" if table.numbered else f"tenant_id, {quoted(KEY)}"


def create_indexes(schema: str, table: Table) -> list[str]:
    return [
        f"CREATE INDEX ON {placed(schema, table.name)} ({', '.join(map(quoted, index))})" for index in table.indexes
    ]


def reshape(before: Mapping[str, Table], after: Mapping[str, Table]) -> Iterator[str]:
    """From the tables there are to those there should be; tables that are gone stay for `drop`."""
    for name, table in after.items():
        if name in ALWAYS:
            continue
        if name in before and table.internal and table != before[name]:
            # Only the fold reads it, and its rows are rebuilt.
            yield f"DROP TABLE {placed(SCHEMA, name)}"
        elif name in before:
            yield from _reshaped(before[name], table)
            continue
        yield create_table(SCHEMA, table)
        yield from create_indexes(SCHEMA, table)


def drop(before: Mapping[str, Table], after: Mapping[str, Table]) -> Iterator[str]:
    """Tables that nothing makes any more."""
    for name in before:
        if name not in after:
            yield f"DROP TABLE {placed(SCHEMA, name)}"


def _reshaped(before: Table, after: Table) -> Iterator[str]:
    target = placed(SCHEMA, after.name)
    for name, type_ in before.stored.items():
        if after.stored.get(name) != type_:
            yield f"ALTER TABLE {target} DROP COLUMN {quoted(name)}"
    for name, type_ in after.stored.items():
        if before.stored.get(name) != type_:
            yield f"ALTER TABLE {target} ADD COLUMN {quoted(name)} {column_type(type_)}"


def stage_of(schema: str, table: Table) -> str:
    """Named for the table's shape: a table that gets another one gets another stage."""
    shape = [schema, table.name, {name: str(type_) for name, type_ in table.stored.items()}]
    return f"stage_{canonical_hash(shape)[:16]}"


def create_stage(schema: str, table: Table) -> str:
    """Where rows lie before they are merged: emptied with every commit, made once per connection."""
    target = placed(schema, table.name)
    return f"CREATE TEMPORARY TABLE IF NOT EXISTS {stage_of(schema, table)} (LIKE {target}) ON COMMIT DELETE ROWS"


def merge(schema: str, table: Table) -> str:
    """Insert or replace what is in the stage."""
    names = [*_META, *table.stored]
    own = [name for name in names if name not in ("tenant_id", KEY)]
    return (
        f"MERGE INTO {placed(schema, table.name)} AS target USING {stage_of(schema, table)} AS stage "
        f"ON {_same(table, 'target', 'stage')} "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{quoted(name)} = stage.{quoted(name)}' for name in own)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(map(quoted, names))}) "
        f"VALUES ({', '.join(f'stage.{quoted(name)}' for name in names)})"
    )


def along_index(wanted: bool) -> str:
    """For this transaction: whether `merge` and `delete_keys` look rows up one after another, as they are sorted for.

    Postgres would go through all of a large table to find a tenth of it, and through files of its own besides.
    """
    value = "off" if wanted else "on"
    return f"SELECT set_config('enable_hashjoin', '{value}', true), set_config('enable_mergejoin', '{value}', true)"


def delete_keys(schema: str, table: Table) -> str:
    same = _same(table, "target", "stage")
    return f"DELETE FROM {placed(schema, table.name)} AS target USING stage_keys AS stage WHERE {same}"


def replace_rows(schema: str, source: str, table: Table, scope: str) -> list[str]:
    """Give a table the rows that one of the same shape in another schema has, where a condition holds."""
    target, names = placed(schema, table.name), ", ".join(map(quoted, [*_META, *table.stored]))
    return [
        f"DELETE FROM {target} WHERE {scope}",
        f"INSERT INTO {target} ({names}) SELECT {names} FROM {placed(source, table.name)} WHERE {scope}",
    ]


def select_keys(schema: str, table: Table) -> str:
    """The stored rows whose keys are in the stage of keys."""
    found = looked_up(schema, table, _same(table, "it", "stage"))
    return f"SELECT {columns(table, 'target.')} FROM stage_keys AS stage {found}"


def select_any(schema: str, table: Table) -> str:
    """Says whether there are rows at all."""
    return f"SELECT 1 FROM {placed(schema, table.name)} LIMIT 1"


def select_few(schema: str, table: Table, keys: Sequence[Mapping[str, str]]) -> str:
    """The stored rows of keys that the statement names."""
    named = ", ".join(f"({_text(key['tenant_id'])}, {_text(key[KEY])})" for key in keys)
    stage = f"(VALUES {named}) AS stage (tenant_id, {quoted(KEY)})"
    return f"SELECT {columns(table, 'target.')} FROM {stage} {looked_up(schema, table, _same(table, 'it', 'stage'))}"


def looked_up(schema: str, table: Table, condition: str) -> str:
    """A join with a table's rows, called `target`, one key after another; in the condition they are called `it`.

    Which of two tables to go through first is otherwise decided by how many rows Postgres believes a table to have,
    and of one that is just being filled it may believe that there are none.
    """
    return f"CROSS JOIN LATERAL (SELECT * FROM {placed(schema, table.name)} AS it WHERE {condition} OFFSET 0) AS target"


#: plans here need a table's size, and autovacuum looks closer later: half a second saved where a table is large
SMALL_SAMPLE = "SET LOCAL default_statistics_target = 10"


def analyze(schema: str, table: Table) -> str:
    """Let Postgres count a table's rows, those of this transaction too."""
    return f"ANALYZE {placed(schema, table.name)} (tenant_id, {quoted(KEY)})"


@dataclass(frozen=True, slots=True)
class Due:
    """Rows of a table that something has come for: where a condition on `target` holds, for some row of a source."""

    #: what follows FROM
    source: str
    condition: str


def select_due(schema: str, table: Table, due: Due, where: str = "TRUE") -> str:
    """The stored rows, called `target`, that are due. They are looked for along an index, however many others wait."""
    inner = f"SELECT * FROM {placed(schema, table.name)} AS target WHERE {due.condition} OFFSET 0"
    return f"SELECT {columns(table, 'target.')} FROM {due.source} CROSS JOIN LATERAL ({inner}) AS target WHERE {where}"


def delete_due(schema: str, table: Table, due: Due) -> str:
    """They are found as above: joined with the source, Postgres would go through all that wait."""
    target = placed(schema, table.name)
    inner = f"SELECT ctid FROM {target} AS target WHERE {due.condition} OFFSET 0"
    found = f"SELECT found.ctid FROM {due.source} CROSS JOIN LATERAL ({inner}) AS found"
    return f"DELETE FROM {target} WHERE ctid = ANY(ARRAY({found}))"


def select_matching(schema: str, table: Table, column: str, due: Due | None) -> str:
    """The stored rows that have a staged key in a column, and those that are due."""

    def same(row: str) -> str:
        return f"{row}.tenant_id = stage.tenant_id AND {row}.{quoted(column)} = stage.{quoted(KEY)}"

    matching = f"SELECT {columns(table, 'target.')} FROM stage_keys AS stage {looked_up(schema, table, same('it'))}"
    if due is None:
        return matching
    others = f"NOT EXISTS (SELECT FROM stage_keys AS stage WHERE {same('target')})"
    return f"{matching} UNION ALL {select_due(schema, table, due, others)}"


def columns(table: Table, prefix: str = "") -> str:
    """The select list of everything stored, in forms that Arrow takes."""
    return ", ".join(f"{_shown(prefix, name, type_)} AS {quoted(name)}" for name, type_ in _stored(table))


CREATE_KEYS = (
    'CREATE TEMPORARY TABLE IF NOT EXISTS stage_keys (tenant_id text COLLATE "C", "$key" text COLLATE "C") '
    "ON COMMIT DELETE ROWS"
)


def _stored(table: Table) -> Iterable[tuple[str, ColumnType | None]]:
    yield from ((name, None) for name in _META)
    yield from table.stored.items()


def _shown(prefix: str, name: str, type_: ColumnType | None) -> str:
    as_text = type_ is not None and type_.name in ("decimal", "json")
    return f"{prefix}{quoted(name)}{'::text' if as_text else ''}"


def _text(text: str) -> str:
    return literal(STRING, text)


def _same(table: Table, left: str, right: str) -> str:
    same = f"{left}.tenant_id = {right}.tenant_id AND {left}.{quoted(KEY)} = {right}.{quoted(KEY)}"
    return f"{left}.ingress_sequence = {right}.{quoted(KEY)}::bigint AND {same}" if table.numbered else same
