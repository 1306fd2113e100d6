"""Values of columns, read from the JSON text of an event, exact."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

SECOND = 1_000_000_000
KEY_BYTES_MAX = 1024
#: more digits than any sum has
EXACT = Context(prec=100)

_SPACE = " \t\n\r"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)(?:[eE]([+-]?)([0-9]+))?")
#: no text is long enough to balance an exponent of more digits
_EXPONENT_DIGITS = 10
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"([Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
#: whole years that 64-bit nanoseconds hold
_YEARS = range(1678, 2262)

# Numbers stay texts: only their end is wanted, and a number may have more digits than Python likes to convert.
_scan = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


class Misfit(ValueError):
    """A value that its column cannot hold."""


def json_members(raw: str | None) -> dict[str, str]:
    """The JSON texts of an object's members as they were sent, the last of equal names. What is no object has none."""
    found: dict[str, str] = {}
    if raw is None or not raw.strip(_SPACE).startswith("{"):
        return found
    at = _skip(raw, 0, "{")
    while raw[at] != "}":
        name, at = _scan(raw, at)
        start = _skip(raw, at, ":")
        _, end = _scan(raw, start)
        found[name] = raw[start:end]
        at = _skip(raw, end, ",")
    return found


def json_items(raw: str | None) -> list[str]:
    """The JSON texts of a list's items. What is no list has none."""
    found: list[str] = []
    if raw is None or not raw.strip(_SPACE).startswith("["):
        return found
    at = _skip(raw, 0, "[")
    while raw[at] != "]":
        _, end = _scan(raw, at)
        found.append(raw[at:end])
        at = _skip(raw, end, ",")
    return found


def json_text(raw: str | None) -> str | None:
    """The text of a JSON value: a string's content, of anything else the JSON text as sent; null has none.

    Choice: columns are read from that text. So numeric strings are numbers, a number in a string column is its
    digits, and a text column can hold any value.
    """
    if raw is None or raw == "null":
        return None
    return str(json.loads(raw)) if raw.startswith('"') else raw


def read(type_: str, content: str) -> Any:
    """The value of a type that a text stands for, unrounded. Raises Misfit."""
    match type_:
        case "string":
            return content
        case "int":
            return _whole(content, 2**31)
        case "bigint":
            return _whole(content, 2**63)
        case "double":
            return _double(content)
        case "boolean":
            if content not in ("true", "false"):
                raise Misfit(content)
            return content == "true"
        case "timestamp":
            return instant(content)
        case "date":
            return _day(content)
    precision, scale = decimal_type(type_)
    number = exact(content)
    if not fits(number, precision - scale, scale):
        raise Misfit(content)
    return number


def text(type_: str, value: Any) -> str:
    """The one text of a value."""
    match type_:
        case "timestamp":
            return instant_text(value)
        case "boolean":
            return "true" if value else "false"
        case "date":
            return str(value.isoformat())
        case "double":
            # The shortest digits that are read back as the same double.
            return decimal_text(Decimal(repr(value)))
    return decimal_text(value) if isinstance(value, Decimal) else str(value)


def decimal_text(number: Decimal) -> str:
    plain = f"{number:f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain == "-0" else plain


def key_text(texts: Sequence[str | None]) -> str:
    """One text is itself, several are a compact JSON array."""
    if len(texts) == 1 and texts[0] is not None:
        return texts[0]
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def bounded(key: str) -> str:
    """Choice: a key beyond a KiB, which no index holds, is its beginning and its digest; the columns are whole."""
    long = len(key.encode()) > KEY_BYTES_MAX
    return f"{key[:200]}...{hashlib.sha256(key.encode()).hexdigest()}" if long else key


def decimal_type(type_: str) -> tuple[int, int]:
    match = _DECIMAL.fullmatch(type_.replace(" ", ""))
    assert match is not None, f"{type_} is no type"
    return int(match[1]), int(match[2])


def exact(content: str) -> Decimal:
    """The number a text is. Raises Misfit; `NaN` and the like are none."""
    match = _NUMBER.fullmatch(content)
    if match is None:
        raise Misfit(content)
    written, sign, exponent = match[1], match[2] or "", (match[3] or "").lstrip("0")
    if not written.strip("+-0."):
        return Decimal(0)
    # Python knows no exponent of any length, and one that is too long fits nowhere anyway.
    power = exponent if len(exponent) <= _EXPONENT_DIGITS else "9" * _EXPONENT_DIGITS
    return Decimal(f"{written}e{sign}{power or 0}")


def fits(number: Decimal, whole_digits: int | None, decimals: int) -> bool:
    """Whether a number has so few digits on either side of its point; None: before it, any number of them."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    significant = written.rstrip("0")
    if not significant:
        return True
    exponent += len(written) - len(significant)
    return -exponent <= decimals and (whole_digits is None or len(significant) + exponent <= whole_digits)


def instant(content: str) -> int:
    """Nanoseconds of an RFC 3339 timestamp. Raises Misfit."""
    match = _RFC3339.fullmatch(content)
    if match is None:
        raise Misfit(content)
    day, time, fraction, offset = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{'+00:00' if offset in 'Zz' else offset}")
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Misfit(content) from None
    if moment.year not in _YEARS:
        raise Misfit(content)
    return nanoseconds(moment) + int((fraction or "").ljust(9, "0"))


def instant_text(nanosecond: int) -> str:
    seconds, fraction = divmod(nanosecond, SECOND)
    moment = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return moment + (f".{fraction:09d}".rstrip("0") if fraction else "") + "Z"


def moment_of(nanosecond: int) -> datetime:
    """The second an instant lies in."""
    return _EPOCH + timedelta(seconds=nanosecond // SECOND)


def nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(seconds=1) * SECOND


def _skip(raw: str, at: int, sign: str) -> int:
    """Past white space and, if it comes next, a sign with white space after it."""
    while raw[at] in _SPACE:
        at += 1
    return _skip(raw, at + 1, "") if raw[at] == sign else at


def _whole(content: str, bound: int) -> int:
    number = exact(content)
    if not fits(number, 19, 0) or not -bound <= int(number) < bound:
        raise Misfit(content)
    return int(number)


def _double(content: str) -> float:
    """The nearest double. Choice: one beyond all doubles does not fit; -0.0 is 0.0, to which it is equal."""
    if _NUMBER.fullmatch(content) is None or math.isinf(float(content)):
        raise Misfit(content)
    return float(content) + 0.0


def _day(content: str) -> date:
    try:
        return date.fromisoformat(content if _DAY.fullmatch(content) else "")
    except ValueError:
        raise Misfit(content) from None
