"""Fields: which column of a foreign row is which field of an event, and the conversion of a row to an event."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidelock.errors import SettingsError
from tidelock.ingest.wire import FIELDS, WireEvent
from tidelock.model import Problem, Rejected

#: columns of an export besides the fields of an event; an import ignores them
EXPORT_FIELDS = ("ingressSequence", "commitId", "sourceTimestamp", "receivedAt", "keySource")
#: another of them, which exports of earlier versions lack
EXPORT_FIELDS_LATER = ("targetSequence",)
#: a column mapped to this is left out
NOWHERE = "-"

_DATA = "data."
_JSON_FIELDS = frozenset({"data", "meta", "payload"})
_json = msgspec.json.Decoder(msgspec.Raw)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: decimals as JSON numbers, digit by digit
encode = msgspec.json.Encoder(decimal_format="number").encode
_SPELLINGS = {
    **dict(zip(WireEvent.__struct_fields__, FIELDS, strict=True)),
    **{name: name for name in FIELDS},
    "ingress_sequence": "ingressSequence",
    "commit_id": "commitId",
    "source_timestamp": "sourceTimestamp",
    "received_at": "receivedAt",
    "key_source": "keySource",
    "target_sequence": "targetSequence",
    **{name: name for name in (*EXPORT_FIELDS, *EXPORT_FIELDS_LATER)},
}


class FieldTarget(NamedTuple):
    """Where a column's values go: a field of the event, or a member of its data."""

    name: str
    is_member: bool


class ColumnMap:
    """The mapping of `--map column=field`.

    Columns named like a field, in either spelling, are that field; every other column is a member of `data`.
    """

    def __init__(self, pairs: Sequence[str]) -> None:
        self._targets: dict[str, str] = {}
        for pair in pairs:
            column, separator, target = pair.rpartition("=")
            if not separator or not column or not target:
                raise SettingsError(f"--map {pair!r} is not of the form column=field")
            if column in self._targets:
                raise SettingsError(f"--map names the column {column!r} twice")
            self._targets[column] = _known(target)

    def __bool__(self) -> bool:
        return bool(self._targets)

    @property
    def canonical(self) -> dict[str, str]:
        return dict(sorted(self._targets.items()))

    def targets(self, columns: Sequence[str], path: Path) -> list[FieldTarget | None]:
        """The target of each column, None for those left out. Raises SettingsError for a contradiction."""
        if unknown := [name for name in self._targets if name not in columns]:
            raise SettingsError(f"{path} has no column {unknown[0]!r}; it has {', '.join(map(repr, columns))}")
        exported = set(EXPORT_FIELDS) <= {_SPELLINGS.get(column, "") for column in columns}
        found = [self._target(column, exported) for column in columns]
        for target in found:
            if target is not None and found.count(target) > 1:
                what = f"data member {target.name!r}" if target.is_member else f"field {target.name!r}"
                raise SettingsError(f"{path} has two columns for the {what}; leave one out with --map COLUMN={NOWHERE}")
        return found

    def rename(self, members: Mapping[str, object]) -> dict[str, object]:
        """The members of a JSON object under the names of fields."""
        return {
            self._targets.get(name, name): value
            for name, value in members.items()
            if self._targets.get(name) != NOWHERE
        }

    def _target(self, column: str, exported: bool) -> FieldTarget | None:
        name = self._targets.get(column)
        if name == NOWHERE:
            return None
        if name is not None:
            return FieldTarget(name.removeprefix(_DATA), True) if name.startswith(_DATA) else FieldTarget(name, False)
        field = _SPELLINGS.get(column)
        # A column called receivedAt is the user's own, unless all of them are there.
        if field is None or (field in (*EXPORT_FIELDS, *EXPORT_FIELDS_LATER) and not exported):
            return FieldTarget(column, True)
        return FieldTarget(field, False)


def _known(target: str) -> str:
    if target == NOWHERE or (target.startswith(_DATA) and target != _DATA):
        return target
    field = _SPELLINGS.get(target)
    if field is None or field in (*EXPORT_FIELDS, *EXPORT_FIELDS_LATER):
        near = difflib.get_close_matches(target, FIELDS, n=1, cutoff=0.0)
        raise SettingsError(
            f"--map: there is no field {target!r}, did you mean {near[0]}? Known fields: {', '.join(FIELDS)}, "
            f"data.NAME for a member of data, and {NOWHERE} to leave a column out"
        )
    return field


def event_text(values: Sequence[object], targets: Sequence[FieldTarget | None]) -> bytes | Rejected:
    """The JSON text of an event from the values of its columns; None is left out."""
    event: dict[str, object] = {}
    members: dict[str, object] = {}
    for value, target in zip(values, targets, strict=True):
        if value is not None and target is not None:
            (members if target.is_member else event)[target.name] = value
    for name in _JSON_FIELDS & event.keys():
        text = event[name]
        if isinstance(text, str):
            try:
                event[name] = _json.decode(text)
            except msgspec.DecodeError as error:
                return Rejected(Problem("invalid_json", f"{name} is not JSON: {error}", name))
    return _with_members(event, members) if members else encode(event)


def _with_members(event: dict[str, object], members: dict[str, object]) -> bytes | Rejected:
    name = next((name for name in ("data", "meta", "payload") if name in event), "data")
    try:
        given = _members.decode(encode(event[name])) if name in event else {}
    except msgspec.DecodeError:
        column = next(iter(members))
        message = f"{name} is not a JSON object, so column {column!r} cannot become a member of it"
        return Rejected(Problem("invalid_event", message, name))
    event[name] = {**given, **members}
    return encode(event)
