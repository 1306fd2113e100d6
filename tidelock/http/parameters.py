"""Parameters: what a request asks for, in its query or in a body of JSON. Unknown, repeated or malformed ones are
reported by name.

Paging is included: every list returns `{"items": [...], "next": cursor|null}` and continues at a cursor.
"""

from __future__ import annotations

import difflib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from tidelock.errors import InvalidJson, PayloadTooLarge, RequestError, UnsupportedMedia
from tidelock.http.problems import JSON
from tidelock.ingest.wire import NAME_CHARACTERS_MAX
from tidelock.instants import parse_instant
from tidelock.ledger.reader import Page, Slice
from tidelock.model import Recorded
from tidelock.settings import Settings

SEQUENCE_MAX = 2**63 - 2
#: of a body of JSON: filters and definitions are the largest part
_BODY_BYTES_MAX = 4 << 20

Asked = TypeVar("Asked")

_INTEGER = re.compile(r"[0-9]{1,19}", re.ASCII)

_CURSOR = re.compile(rb"(asc|desc):([0-9]{1,19})")


class Parameters:
    """The parameters of one request. A mistyped name must not act like a missing filter: only known ones
    are accepted.
    """

    def __init__(self, query: bytes, known: Collection[str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name not in known:
                raise RequestError(_unknown(name, known), field=name)
            if name in self._values:
                raise RequestError(f"{name} is given twice", field=name)
            if "\0" in value:
                raise RequestError(f"{name} contains NUL", field=name)
            self._values[name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def name(self, name: str) -> str | None:
        """A string that cannot be empty."""
        value = self._values.get(name)
        if value == "":
            raise RequestError(f"{name} is empty; omit it for all", field=name)
        return value

    def cursor(self) -> str | None:
        """The cursor to go on from; an empty one is none, as clients that keep it in a variable send it first."""
        return self._values.get("cursor") or None

    def sequence(self, name: str, *, minimum: int = 0) -> int | None:
        return self._integer(name, minimum, SEQUENCE_MAX)

    def limit(self, *, default: int, maximum: int) -> int:
        limit = self._integer("limit", 1, maximum)
        return default if limit is None else limit

    def instant(self, name: str) -> int | None:
        value = self._values.get(name)
        try:
            return None if value is None else parse_instant(value)
        except ValueError as error:
            raise RequestError(f"{name}: {error}", field=name) from None

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self._values.get(name)
        if value is not None and value not in choices:
            raise RequestError(f"{name} is {' or '.join(choices)}", field=name)
        return value

    def _integer(self, name: str, minimum: int, maximum: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not _INTEGER.fullmatch(value) or not minimum <= int(value) <= maximum:
            raise RequestError(f"{name} must be a whole number from {minimum} to {maximum}", field=name)
        return int(value)


def required(name: str, value: str | None) -> str:
    """The value of a required parameter."""
    if value is None:
        raise RequestError(f"{name} is missing", field=name)
    return value


def _unknown(name: str, known: Collection[str]) -> str:
    shown = repr(name if len(name) <= 60 else name[:60] + "...")
    nearest = difflib.get_close_matches(name[:60], known, n=1, cutoff=0.0)
    return f"there is no parameter {shown}" + (f"; did you mean {nearest[0]}?" if nearest else "")


@dataclass(frozen=True, slots=True)
class Paging:
    """How much of a list is requested, in which order, and from where."""

    limit: int
    descending: bool
    #: sequence of the last item of the previous page
    position: int | None

    def narrow(self, events: Slice) -> Slice:
        """The rest of the slice after the previous pages."""
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
        """The cursor of the next page, if there is one."""
        return following(page, descending=self.descending)


def following(page: Page[Recorded], *, descending: bool = False) -> str | None:
    """The cursor of the next page, if there is one."""
    if not page.more or not page.events:
        return None
    order = "desc" if descending else "asc"
    return _encoded(f"{order}:{page.events[-1].ingress_sequence}".encode())


def read_limit(parameters: Parameters, settings: Settings) -> int:
    """The maximum number of rows of a page."""
    return parameters.limit(default=min(settings.page_rows, settings.page_rows_max), maximum=settings.page_rows_max)


def read_paging(parameters: Parameters, settings: Settings, *, order: str | None = "asc") -> Paging:
    """Without an order, a cursor keeps its own."""
    limit = read_limit(parameters, settings)
    cursor = parameters.cursor()
    if cursor is None:
        return Paging(limit, order == "desc", None)
    began, position = _read_cursor(cursor)
    if order is not None and began != order:
        raise RequestError("this cursor belongs to a list in the other order", field="cursor")
    return Paging(limit, began == "desc", position)


def key_cursor(table: str, tenant_id: str, key: str) -> str:
    """The cursor of a list ordered by key, after this key."""
    return _encoded(msgspec.json.encode([table, tenant_id, key]))


def read_key_cursor(cursor: str, table: str) -> tuple[str, str]:
    """Tenant and key of the last row of the previous page."""
    try:
        of_table, tenant_id, key = msgspec.json.decode(_decoded(cursor), type=tuple[str, str, str])
    except ValueError:
        raise _foreign() from None
    if of_table != table or "\0" in tenant_id or "\0" in key:
        raise _foreign()
    return tenant_id, key


def read_number_cursor(cursor: str, table: str) -> int:
    """The same where the key is a number."""
    _, number = read_key_cursor(cursor, table)
    if _INTEGER.fullmatch(number) is None or int(number) > SEQUENCE_MAX:
        raise _foreign()
    return int(number)


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
    return RequestError("this cursor does not belong to this list", field="cursor")


async def whole_body(request: Request, bytes_max: int) -> bytes:
    """The body as it arrives, and no chunk beyond the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise PayloadTooLarge(f"the body is larger than {bytes_max} bytes")
    return bytes(body)


async def request_body(request: Request) -> bytes:
    """A body of JSON, which is not large."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type not in (JSON, ""):
        raise UnsupportedMedia(f"send {JSON}")
    return await whole_body(request, _BODY_BYTES_MAX)


async def read_json(request: Request, form: type[Asked], shape: str) -> Asked:
    """The JSON body of a request. `shape` shows its members, for the message about a body of another form."""
    body = await request_body(request)
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.ValidationError as problem:
        raise RequestError(f"the body is {shape}: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidJson(f"the body is not JSON: {problem}") from None


def check_names(named: Mapping[str, str | None]) -> None:
    """Names in a body, by member; null is none. Raises RequestError."""
    for member, name in named.items():
        if name is not None and not (0 < len(name) <= NAME_CHARACTERS_MAX and "\0" not in name):
            raise RequestError(f"{member} has 1 to {NAME_CHARACTERS_MAX} characters", field=member)
