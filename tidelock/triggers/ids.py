"""Names of triggers and ids of their events. An id is a function of what happened: a replay makes the same one."""

from __future__ import annotations

import re
from hashlib import sha256

from tidelock.errors import RequestError

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
EVENT_ID = re.compile(r"[0-9a-f]{32}")
_DIGITS = 32


def check_name(name: str) -> str:
    """The name, if it may be a trigger's. Without colons, the text of an id is read in one way only."""
    if NAME.fullmatch(name) is None:
        raise RequestError("a trigger's name has 1 to 128 letters, digits, dots, dashes and underscores", field="name")
    return name


def event_id(trigger: str, key: str, source_timestamp: int) -> str:
    """The id of a trigger's event: the first 32 hex digits of SHA-256 over `{trigger}:{key}:{source_timestamp}`.

    `key` is the text of the row's key as changes have it: one column is its text, several are a compact JSON array.
    """
    return sha256(f"{trigger}:{key}:{source_timestamp}".encode()).hexdigest()[:_DIGITS]
