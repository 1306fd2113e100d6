"""Slices on the command line: the flags that choose events, the same for every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelock.errors import SettingsError
from tidelock.http.parameters import parse_instant

if TYPE_CHECKING:
    from tidelock.ledger.reader import Slice

_SEQUENCE_MAX = 2**63 - 2

Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant.")]
Stream = Annotated[str | None, typer.Option("--stream", metavar="NAME", help="Only this stream.")]
Customer = Annotated[str | None, typer.Option("--customer", metavar="NAME", help="Only this customerRef.")]
Causality = Annotated[str | None, typer.Option("--causality", metavar="KEY", help="Only this causalityKey.")]
From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Occurred at or after: RFC 3339, or epoch milliseconds.")
]
To = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Occurred before: RFC 3339, or epoch milliseconds.")
]
After = Annotated[int | None, typer.Option("--after", metavar="SEQUENCE", help="Behind this sequence.")]
Before = Annotated[int | None, typer.Option("--before", metavar="SEQUENCE", help="Before this sequence.")]


def slice_of(
    tenant: str | None,
    stream: str | None,
    customer: str | None,
    causality: str | None,
    occurred_from: str | None = None,
    occurred_to: str | None = None,
    after: int | None = None,
    before: int | None = None,
) -> Slice:
    from tidelock.ledger.reader import Slice

    check_texts(tenant=tenant, stream=stream, customer=customer, causality=causality)
    for name, sequence in (("after", after), ("before", before)):
        if sequence is not None and not 0 <= sequence <= _SEQUENCE_MAX:
            raise SettingsError(f"--{name} is a whole number from 0 to {_SEQUENCE_MAX}")
    first, last = _instant("--from", occurred_from), _instant("--to", occurred_to)
    return Slice(tenant, stream, customer, causality, first, last, after, before)


def check_texts(**given: str | None) -> None:
    """Raises SettingsError for what no database can be asked for."""
    for name, value in given.items():
        # Python keeps bytes of an argument that are no UTF-8 as half surrogate pairs.
        if value is not None and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
            raise SettingsError(f"{name}: {value!r} is no text; it must be UTF-8 without NUL")


def _instant(flag: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_instant(text)
    except ValueError as error:
        raise SettingsError(f"{flag}: {error}") from None
