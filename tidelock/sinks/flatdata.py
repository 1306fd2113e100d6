"""Flat data: an object with nothing nested and no backslash in it, whose members a regular expression finds exactly.

Most events' data is such. Executors then take members out of it in parallel, as the texts that were sent; Spark's own
JSON functions would send numbers through doubles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as f

from tidelock.fold.slots import Member, Slots

#: Without a backslash no string has a quote in it, so every quote begins or ends one.
FLAT = r"^\s*\{[^\\{}\[\]]*\}\s*$"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def is_simple(member: Member) -> bool:
    """Whether a member is found in flat data by its pattern, or is the data itself."""
    return not member.path or (len(member.path) == 1 and _NAME.fullmatch(member.path[0]) is not None)


def pattern(member: Member) -> str:
    """The member's text, with a string's quotes, as the first group; of several with one name the last, as Postgres."""
    return rf'(?s)^.*"{member.path[0]}"\s*:\s*("[^"]*"|[^",}}\s]+)'


def is_flat() -> Column:
    """Whether an event's data is flat; where there is none, there is nothing to find."""
    return f.col("data").isNull() | f.col("data").rlike(FLAT)


def slot_columns(slots: Slots) -> list[Column]:
    """The slots' texts, of flat data."""
    return [_slot(slots.members, number).alias(name) for number, name in enumerate(slots.columns())]


def _slot(members: Mapping[str, Sequence[Member]], number: int) -> Column:
    found = f.lit(None).cast("string")
    for stream, listed in members.items():
        if number < len(listed):
            found = f.when(f.col("stream") == stream, _text(listed[number])).otherwise(found)
    return found


def _text(member: Member) -> Column:
    if not member.path:
        return f.col("data")
    value = f.regexp_extract("data", pattern(member), 1)
    # No match is an empty text, which no value is.
    text = f.when((value == "") | (value == "null"), None)
    return text.otherwise(value if member.raw else f.regexp_replace(value, '^"|"$', ""))
