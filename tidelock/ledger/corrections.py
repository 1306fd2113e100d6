"""Corrections: find the event that a void or an amendment names, and complete an amendment from it.

The target is found by its key under the head's lock. It may have been recorded long ago, or by the very commit that
records the correction: both give the same verdict, so that nothing depends on how requests were grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from tidelock.errors import PayloadTooLarge
from tidelock.model import Event, Op, Problem, Rejected


class Correctable(NamedTuple):
    """What a correction must know of its target."""

    sequence: int
    stream: str
    customer_ref: str | None
    resource_id: str | None
    row_key: str | None
    op: Op
    occurred_at: int
    quantity: str | None
    #: read for amendments only, otherwise None
    data: bytes | None
    #: sequence of the event that corrects it
    corrected_by: int | None = None


def named_targets(events: Iterable[Event]) -> frozenset[bytes]:
    """The identities of the events that corrections name."""
    return frozenset(event.target_digest for event in events if event.target_digest is not None)


class Targets:
    """The events that the corrections of a commit may name: those recorded before it, and those that it records."""

    def __init__(self, named: frozenset[bytes], known: Mapping[bytes, Correctable], carried_bytes_max: int) -> None:
        self._named = named
        self._found = dict(known)
        self._room = carried_bytes_max

    def find(self, correction: Event) -> Correctable | Rejected:
        """The event that is corrected, or why it cannot be."""
        assert correction.target_digest is not None, "a correction has a target"
        target = self._found.get(correction.target_digest)
        if target is None or target.stream != correction.stream:
            message = "no event of this tenant and stream has this key; a target is recorded before its correction"
            return _rejected("unknown_target", message)
        if target.op == "void":
            message = f"sequence {target.sequence} is a void, which is final; send the event again with another key"
        elif correction.in_keyed_stream or target.row_key is not None:
            message = f"sequence {target.sequence} is in a stream with a key: the next upsert of its row corrects it"
        elif target.corrected_by is not None:
            message = f"sequence {target.sequence} is already corrected, by sequence {target.corrected_by}"
        else:
            return target
        return _rejected("invalid_target", message)

    def completed(self, correction: Event, target: Correctable) -> Event:
        """The correction as it is recorded: an amendment with the whole quantity and data that result."""
        quantity, data = correction.quantity, correction.data
        if correction.op == "amend":
            quantity = target.quantity if quantity is None else quantity
            if data is None and target.data is not None:
                data = target.data
                self._room -= len(data)
                if self._room < 0:
                    raise too_much_carried()
        return msgspec.structs.replace(
            correction,
            customer_ref=target.customer_ref,
            resource_id=target.resource_id,
            occurred_at=target.occurred_at,
            quantity=quantity,
            data=data,
        )

    def recorded(self, event: Event, sequence: int, occurred_at: int) -> None:
        """Note an event of this commit: it may be a target, and may have corrected one."""
        if event.target_digest is not None:
            self._found[event.target_digest] = self._found[event.target_digest]._replace(corrected_by=sequence)
        if event.digests and event.digests[0] in self._named:
            self._found[event.digests[0]] = Correctable(
                sequence=sequence,
                stream=event.stream,
                customer_ref=event.customer_ref,
                resource_id=event.resource_id,
                row_key=event.row_key,
                op=event.op,
                occurred_at=occurred_at,
                quantity=event.quantity,
                data=event.data,
            )


def too_much_carried() -> PayloadTooLarge:
    return PayloadTooLarge(
        "the amendments of this request leave too much data as it is, which is recorded with each of them; "
        "send fewer of them at once"
    )


def _rejected(code: str, message: str) -> Rejected:
    return Rejected(Problem(code, message, "target"))
