"""The anchor file: what the head of the ledger was, now and then, kept where whoever can write the database cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidelock.instants import format_instant
from tidelock.model import Head

LINES_MAX = 10_000
_LINES_KEPT = 1_000
_DAY_LETTERS = len("2026-01-31")


class AnchorLine(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The head of the ledger at a moment."""

    commit_id: int
    ingress_sequence: int
    #: of the commit, in hex
    digest: str
    #: when it was written
    at: str
    #: in nanoseconds; None: of a line that was written before lines had it
    source_timestamp: str | None = None

    @classmethod
    def of(cls, head: Head, now: int) -> AnchorLine:
        return cls(
            head.commit_id, head.ingress_sequence, head.digest.hex(), format_instant(now), str(head.source_timestamp)
        )


class BadAnchor(ValueError):
    """A line of the file says nothing; the message names it."""


_line = msgspec.json.Decoder(AnchorLine)


def read_anchors(path: Path) -> list[AnchorLine]:
    """Every line, oldest first; none when there is no file. A last line cut off by a crash is left out."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    complete = text[: text.rfind(b"\n") + 1]
    return [_decoded(line, number, path) for number, line in enumerate(complete.splitlines(), 1) if line.strip()]


def encode_anchor(line: AnchorLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def append_anchor(path: Path, line: AnchorLine) -> None:
    """Add a line; it is on disk when this returns. Several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        _drop_cut_off(file.fileno())
        # One write of one line: those of other processes stay whole.
        os.write(file.fileno(), encode_anchor(line))
        os.fsync(file.fileno())


def shorten_anchors(path: Path) -> int:
    """Rewrite a file that has grown: the latest lines and the first of every day stay. Returns how many."""
    kept = list(_kept(read_anchors(path)))
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as file:
        file.writelines(encode_anchor(line) for line in kept)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    return len(kept)


def _kept(lines: list[AnchorLine]) -> Iterator[AnchorLine]:
    day = ""
    for number, line in enumerate(lines):
        if line.at[:_DAY_LETTERS] != day or number >= len(lines) - _LINES_KEPT:
            yield line
        day = line.at[:_DAY_LETTERS]


def _drop_cut_off(file: int) -> None:
    """Remove a last line that a crash cut off: it says nothing, and would spoil the next one."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        text = os.pread(file, size, 0)
        os.ftruncate(file, text.rfind(b"\n") + 1)


def _decoded(line: bytes, number: int, path: Path) -> AnchorLine:
    try:
        return _line.decode(line)
    except msgspec.DecodeError:
        raise BadAnchor(f"line {number} of {path} cannot be read") from None
