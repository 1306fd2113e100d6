"""Paging: every list answers `{"items": [...], "next": cursor|null}` and goes on where a cursor says."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, replace

import msgspec

from tidelock.errors import RequestError
from tidelock.ledger.reader import Page, Slice
from tidelock.model import Recorded
from tidelock.ops.parameters import SEQUENCE_MAX, Parameters
from tidelock.settings import Settings

_CURSOR = re.compile(rb"(asc|desc):([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Paging:
    """How much of a list is asked, which way, and from where on."""

    limit: int
    descending: bool
    #: sequence of the last item of the page before
    position: int | None

    def narrow(self, events: Slice) -> Slice:
        """The rest of the slice after the pages before."""
        if self.position is None:
            return events
        if self.descending:
            before = self.position if events.before is None else min(events.before, self.position)
            return replace(events, before=before)
        after = self.position if events.after is None else max(events.after, self.position)
        return replace(events, after=after)

    def encode(self, page: Page[Recorded]) -> bytes:
        """The page's body."""
        return msgspec.json.encode({"items": page.events, "next": self.following(page)})

    def following(self, page: Page[Recorded]) -> str | None:
        """The cursor of the page after, where there is one."""
        return self._cursor(page.events[-1].ingress_sequence) if page.more and page.events else None

    def _cursor(self, position: int) -> str:
        order = "desc" if self.descending else "asc"
        return _encoded(f"{order}:{position}".encode())


def read_limit(parameters: Parameters, settings: Settings) -> int:
    """How many rows a page has at most."""
    return parameters.limit(default=min(settings.page_rows, settings.page_rows_max), maximum=settings.page_rows_max)


def read_paging(parameters: Parameters, settings: Settings, *, order: str | None = "asc") -> Paging:
    """Without an order a cursor goes on in its own."""
    limit = read_limit(parameters, settings)
    cursor = parameters.text("cursor")
    if cursor is None:
        return Paging(limit, order == "desc", None)
    began, position = _read_cursor(cursor)
    if order is not None and began != order:
        raise RequestError("this cursor belongs to the other order", field="cursor")
    return Paging(limit, began == "desc", position)


def key_cursor(table: str, tenant_id: str, key: str) -> str:
    """The cursor of a list that is in the order of keys, behind that one."""
    return _encoded(msgspec.json.encode([table, tenant_id, key]))


def read_key_cursor(cursor: str, table: str) -> tuple[str, str]:
    """Tenant and key of the last row of the page before."""
    try:
        of_table, tenant_id, key = msgspec.json.decode(_decoded(cursor), type=tuple[str, str, str])
    except ValueError:
        raise _foreign() from None
    if of_table != table or "\0" in tenant_id or "\0" in key:
        raise _foreign()
    return tenant_id, key


def _read_cursor(cursor: str) -> tuple[str, int]:
    try:
        match = _CURSOR.fullmatch(_decoded(cursor))
    except ValueError:
        match = None
    if match is None or int(match[2]) > SEQUENCE_MAX:
        raise _foreign()
    return match[1].decode(), int(match[2])


def _encoded(position: bytes) -> str:
    return urlsafe_b64encode(position).rstrip(b"=").decode()


def _decoded(cursor: str) -> bytes:
    """Raises ValueError."""
    return urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))


def _foreign() -> RequestError:
    return RequestError("this is not a cursor that this list has given", field="cursor")
