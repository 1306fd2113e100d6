"""Topics: how the topic of a stream is called.

A name tells its stream: what Kafka does not allow in it becomes `_xHH`, byte by byte, and an underscore that would be
read as the beginning of that does too.
"""

from __future__ import annotations

import hashlib
import re

#: longest name that Kafka takes
LENGTH_MAX = 249

_ALLOWED = re.compile(rb"[A-Za-z0-9.-]|_(?!x[0-9A-F]{2})")
# Kafka takes either of two names that differ in these alone: to its metrics they are one character.
_ALLOWED_APART = re.compile(rb"[A-Za-z0-9-]")
_PIECE = re.compile(r"_x([0-9A-F]{2})|(.)", re.DOTALL)
_DIGEST = 32


def topic_name(prefix: str, stream: str) -> str:
    return _named(prefix, stream, _ALLOWED)


def topic_name_apart(prefix: str, stream: str) -> str:
    """The name of a stream whose own is too much like that of another: `a.b` where there is `a_b`."""
    return _named(prefix, stream, _ALLOWED_APART)


def stream_of(prefix: str, topic: str) -> str:
    """The stream that a topic is named for. One that was cut gives what was cut."""
    pieces = _PIECE.findall(topic.removeprefix(prefix))
    return b"".join(bytes.fromhex(code) if code else text.encode() for code, text in pieces).decode()


def _named(prefix: str, stream: str, allowed: re.Pattern[bytes]) -> str:
    raw = stream.encode()
    escaped = "".join(
        chr(byte) if allowed.match(raw, position) else f"_x{byte:02X}" for position, byte in enumerate(raw)
    )
    name = prefix + escaped
    if len(name) <= LENGTH_MAX:
        return name
    # Cut, but still another for each stream.
    digest = hashlib.sha256(raw).hexdigest()[:_DIGEST]
    return f"{name[: LENGTH_MAX - _DIGEST - 1]}-{digest}"
