"""Members of events' data as texts, as Postgres gives them: for ranges that are read from the lake.

Spark's own JSON functions send numbers through doubles. Here nothing is read that is not asked for, and what is asked
for stays the text that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidelock.fold.slots import Member

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = msgspec.json.Decoder(str).decode


def member_texts(data: str | None, members: Sequence[Member]) -> list[str | None]:
    """The texts of some members of one event's data."""
    found = _members(data)
    return [data if not member.path else _text(found, member) for member in members]


def _text(found: dict[str, msgspec.Raw] | None, member: Member) -> str | None:
    *steps, last = member.path
    for step in steps:
        if found is None or step not in found:
            return None
        found = _members(found[step])
    if found is None or last not in found:
        return None
    text = bytes(found[last]).decode()
    if text == "null":
        return None
    return text if member.raw or not text.startswith('"') else _string(text)


def _members(text: str | msgspec.Raw | None) -> dict[str, msgspec.Raw] | None:
    """What is no object has no members."""
    if text is None:
        return None
    try:
        return _object(text)
    except msgspec.ValidationError:
        return None
