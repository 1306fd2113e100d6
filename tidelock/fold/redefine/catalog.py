"""The catalog: the definitions that the tables follow, and the shape of the tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidelock.canonical import canonical_hash
from tidelock.columns import STRING
from tidelock.definitions import Definitions, Meter, Stream, Window, parse_definitions
from tidelock.errors import SettingsError
from tidelock.fold.store import Store
from tidelock.tables import Table, read_tables
from tidelock.where.sql import literal


@dataclass(frozen=True, slots=True)
class Catalog:
    """The definitions that the tables follow."""

    version: int
    definitions: Definitions
    #: by path, such as `meters.api_calls`
    hashes: Mapping[str, str]
    tables: Mapping[str, Table]


def read_catalog(store: Store) -> Catalog | None:
    """None: nothing has been folded yet."""
    found = store.query("SELECT version, definitions::text, hashes::text, tables::text FROM fold_definitions")
    if not found.num_rows:
        return None
    row = found.to_pylist()[0]
    definitions = parse_definitions(json.loads(row["definitions"]), eventtime_types=None)
    tables = read_tables(json.loads(row["tables"]))
    return Catalog(row["version"], _made(definitions, tables), json.loads(row["hashes"]), tables)


def _made(definitions: Definitions, tables: Mapping[str, Table]) -> Definitions:
    """Definitions with tables. An old version that did not fold windows has left some declared without tables."""
    streams = {
        name: replace(stream, ordered=stream.ordered and f"{name}_ordered" in tables)
        for name, stream in definitions.streams.items()
    }
    windows = {name: window for name, window in definitions.windows.items() if name in tables}
    return replace(definitions, streams=streams, windows=windows)


def write_catalog_sql(version: int, definitions: Definitions, tables: Iterable[Table]) -> str:
    forms = (
        definitions.canonical(),
        unit_hashes(definitions),
        [table.canonical() for table in tables],
    )
    values = ", ".join(literal(STRING, json.dumps(form, ensure_ascii=False)) for form in forms)
    return (
        "INSERT INTO fold_definitions (version, definitions, hashes, tables) "
        f"SELECT {version}, new.d::json, new.h::json, new.t::json FROM (VALUES ({values})) AS new (d, h, t) "
        "ON CONFLICT (only_row) DO UPDATE SET version = excluded.version, definitions = excluded.definitions, "
        "hashes = excluded.hashes, tables = excluded.tables"
    )


def unit_hashes(definitions: Definitions) -> dict[str, str]:
    """The hash of everything that affects the rows of a definition, by path.

    A stream's columns affect which events its meters see. Whether changes are recorded does not affect rows.
    """
    streams = {
        f"streams.{name}": _stream_hash(stream, timing_form(definitions, name))
        for name, stream in definitions.streams.items()
    }
    meters = {
        # Events have one error row per name: if the stream reports their time, a meter of that name reports nothing.
        f"meters.{name}": _meter_hash(
            meter,
            definitions.streams.get(meter.stream),
            timing_form(definitions, name) if name == meter.stream else None,
        )
        for name, meter in definitions.meters.items()
    }
    windows = {
        f"windows.{name}": _window_hash(
            window,
            definitions.streams.get(window.stream),
            timing_form(definitions, window.stream) if window.eventtime.enabled else None,
        )
        for name, window in definitions.windows.items()
    }
    return streams | meters | windows


def timing_form(definitions: Definitions, stream: str) -> dict[str, object] | None:
    """Everything that affects the time of a stream's events: its declaration, and those of streams whose messages they
    may carry.
    """
    if stream not in definitions.timed:
        return None
    return {name: _time_form(timed) for name, timed in sorted(definitions.timed.items())}


def changed_units(before: Mapping[str, str], definitions: Definitions) -> list[str]:
    """Paths of the definitions that are new, different or gone."""
    after = unit_hashes(definitions)
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def changed_definitions(before: Definitions, after: Definitions) -> list[str]:
    """The same, and those for which only the recording of changes was switched."""
    was, now = _lives(before), _lives(after)
    flipped = {path for path in {*was, *now} if was.get(path) != now.get(path)}
    return sorted({*changed_units(unit_hashes(before), after), *flipped})


def check_columns(before: Definitions, after: Definitions) -> None:
    """Columns of a stream can only be added: events recorded under the old ones must still be read the same."""
    for name, old in before.streams.items():
        new = after.streams.get(name)
        if new is None:
            continue
        for column, type_ in old.columns.items():
            if new.columns.get(column) != type_:
                was = f"is declared {new.columns[column]}" if column in new.columns else "is missing"
                raise SettingsError(
                    f"streams.{name}.columns: columns can only be added, but {column} {was}, and existing rows have "
                    f'{column} = "{type_}". Declare it as before, or use a new stream.',
                    field=f"streams.{name}.columns.{column}",
                )


def _lives(definitions: Definitions) -> dict[str, bool]:
    kinds: dict[str, Mapping[str, Stream | Meter | Window]]
    kinds = {"streams": definitions.streams, "meters": definitions.meters, "windows": definitions.windows}
    return {f"{kind}.{name}": each.live for kind, known in kinds.items() for name, each in known.items()}


def _stream_hash(stream: Stream, timing: object) -> str:
    form = {name: part for name, part in stream.canonical().items() if name in ("key", "columns", "calculated")}
    if stream.ordered and stream.eventtime is not None:
        form["ordered"] = stream.eventtime.canonical()
    return _hash({"stream": stream.name, "definition": form}, timing)


def _meter_hash(meter: Meter, stream: Stream | None, timing: object) -> str:
    form = meter.counting().canonical()
    return _hash({"meter": meter.name, "definition": form, "stream": _columns_form(stream)}, timing)


def _window_hash(window: Window, stream: Stream | None, timing: object) -> str:
    form = replace(window, live=True).canonical()
    used = {*window.group_by, *(aggregate.column for aggregate in window.select.values())}
    calculated = {} if stream is None else {name: sql for name, sql in stream.calculated.items() if name in used}
    columns = _columns_form(stream)
    return _hash(
        {"window": window.name, "definition": form, "stream": columns, "calculated": calculated or None}, timing
    )


def _columns_form(stream: Stream | None) -> dict[str, object] | None:
    """What affects which events of a stream are seen."""
    return None if stream is None else {"key": list(stream.key), "columns": stream.canonical()["columns"]}


def _hash(form: dict[str, object], timing: object) -> str:
    """Definitions without event time keep the hashes they had before event time existed."""
    return canonical_hash(form if timing is None else form | {"timing": timing})


def _time_form(stream: Stream) -> dict[str, object]:
    declared = stream.eventtime
    assert declared is not None
    type_ = stream.columns.get(declared.column)
    return {"column": declared.column, "type": declared.type, "of": None if type_ is None else str(type_)}
