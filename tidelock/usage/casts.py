"""Casts for Postgres, the counterpart of `spark.casts`. The same strings give exactly the same values, and nothing
fails. Postgres parses numbers exactly, but raises for those it cannot represent.

So a string is checked first, by a pattern of the common form, or else split into parts. Only the chosen branch of a
CASE is evaluated, including its subqueries. Arguments are SQL expressions and occur several times in the result:

pass column names, not computations.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal

from tidelock.columns import ColumnType

_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_WEEK = 7 * _DAY
#: the type of summands, as in the fold
_QUANTITY_DIGITS = (19, 9)

#: on each side of the point of a number whose distinct values are counted
_DISTINCT_DIGITS = 400

_NUMBER = r"\A[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z"
# sign, whole digits, decimals, sign and digits of the exponent
_NUMBER_PARTS = r"\A([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]*))?\Z"
_EXPONENT_DIGITS_MAX = 10
#: beyond the first the nearest double is infinite; at or below the second it is zero. Postgres raises for both
DOUBLE_END = str(2**1024 - 2**970)
DOUBLE_ZERO = format(Decimal(5**1075).scaleb(-1075, Context(prec=1100)), "f")
# Further digits than those of the two numbers do not decide on which side a number lies.
_DOUBLE_DIGITS = 1100

_YEAR_MONTH = "[0-9]{4}-(?:0[1-9]|1[0-2])"
_DATE = rf"\A(?!0000){_YEAR_MONTH}-[0-9]{{2}}\Z"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_INSTANT = rf"\A(?!0){_YEAR_MONTH}-[0-9]{{2}}[Tt ]{_TIME}(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])\Z"
_SECONDS = (-9_214_560_000, 9_214_646_399)


def typed(type_: ColumnType, text: str) -> str:
    """The value of a string; null if it has none, or none that fits. Instants are bigint nanoseconds."""
    match type_.name:
        case "string" | "json":
            return text
        case "boolean":
            return f"CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
        case "int":
            return _whole(text, 9, 2**31)
        case "bigint":
            return _whole(text, 18, 2**63)
        case "double":
            return _double(text)
        case "date":
            return f"CASE WHEN {_matches(text, _DATE)} THEN {_day(text)} END"
        case "timestamp":
            return _instant(text)
    return _decimal(text, type_.precision - type_.scale, type_.scale)


def canonical(type_: ColumnType, value: str) -> str:
    """The canonical string of a typed value, as in keys and groups."""
    match type_.name:
        case "string" | "json":
            return value
        case "timestamp":
            return instant_text(value)
        case "decimal":
            return f"trim_scale({value})::text"
        case "date":
            return f"to_char({value}, 'YYYY-MM-DD')"
        case "double":
            raise ValueError("a double has no one text")
    return f"{value}::text"


def quantity(type_: ColumnType | None, value: str) -> str:
    """The quantity of a typed value, or of a path's text without a type; null if there is none."""
    whole, decimals = _QUANTITY_DIGITS
    if type_ is None:
        return _decimal(value, whole, decimals)
    match type_.name:
        case "int" | "bigint":
            return f"{value}::numeric"
        case "double":
            return _double_quantity(value)
        case "decimal":
            fits = f"abs({value}) < 1e{whole} AND {value} = round({value}, {decimals})"
            return f"CASE WHEN {fits} THEN {value} END"
    return "NULL::numeric"


def period_start(period: str, instant: str) -> str:
    """Start of the UTC hour, day, week (from Monday) or month of an instant, all in nanoseconds."""
    match period:
        case "hour":
            return f"({instant} - {_rest(instant, 3600 * _SECOND)})"
        case "day":
            return f"({instant} - {_rest(instant, _DAY)})"
        case "week":  # 1970 began on a Thursday
            return f"({instant} - {_rest(f'({instant} + {3 * _DAY})', _WEEK)})"
        case "month":
            first = f"date_trunc('month', DATE '1970-01-01' + {_floored(instant, _DAY)}::int)::date"
            return f"(({first} - DATE '1970-01-01')::bigint * {_DAY})"
    raise ValueError(f"{period} is not a period")


def json_array(texts: Sequence[str]) -> str:
    """Strings as a compact JSON array; null stays null in it."""
    members = " || ',' || ".join(f"coalesce(to_json({text})::text, 'null')" for text in texts)
    return f"'[' || {members} || ']'"


def json_distinct(text: str) -> str:
    """What tells a JSON value from others: a string's characters, a number in plain notation, the text of others.

    A number with more digits than that on a side of its point is the text that was sent."""
    number = _taken_apart(text, _DISTINCT_DIGITS, _DISTINCT_DIGITS, "number")
    plain = f"coalesce(trim_scale(({number}))::text, {text})"
    return (
        f"CASE WHEN left({text}, 1) = '\"' THEN {text}::json #>> '{{}}' "
        f"WHEN left({text}, 1) IN ('-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9') THEN {plain} ELSE {text} END"
    )


def instant_text(instant: str) -> str:
    """RFC 3339 in UTC with `Z` of nanoseconds, the fraction without trailing zeros."""
    day = f"(DATE '1970-01-01' + {_floored(instant, _DAY)}::int)"
    seconds = f"make_interval(secs => ({_rest(instant, _DAY)} / {_SECOND})::int)"
    fraction = _rest(instant, _SECOND)
    digits = f"rtrim(lpad(({fraction})::text, 9, '0'), '0')"
    ending = f"CASE WHEN {fraction} = 0 THEN 'Z' ELSE '.' || {digits} || 'Z' END"
    return f"""to_char({day} + {seconds}, 'YYYY-MM-DD"T"HH24:MI:SS') || {ending}"""


def average(total: str, count: str) -> str:
    """Nine decimals, half away from zero; by whole numbers, so that nothing is rounded twice."""
    halves = f"div(abs({total}) * 2000000000 + {count}, 2 * {count}::numeric)"
    return f"CASE WHEN {count} > 0 THEN sign({total}) * {halves} * 0.000000001 END"


def _matches(text: str, pattern: str) -> str:
    return f"{text} ~ '{pattern}'"


def _whole(text: str, safe_digits: int, limit: int) -> str:
    """An integer: in the forms with few enough digits to always fit, or in any form."""
    number = f"(SELECT whole::bigint FROM ({_taken_apart(text, 19, 0, 'whole')}) AS it "
    number += f"WHERE whole BETWEEN -{limit} AND {limit - 1})"
    plain = _matches(text, rf"\A-?[0-9]{{1,{safe_digits}}}\Z")
    return f"CASE WHEN {plain} THEN {text}::bigint WHEN {_matches(text, _NUMBER)} THEN {number} END"


def _decimal(text: str, whole: int, decimals: int) -> str:
    """A number in any form, if it has no more digits on either side of its point than that."""
    before = f"[0-9]{{1,{whole}}}" if whole else "0"
    after = rf"(?:\.[0-9]{{1,{decimals}}})?" if decimals else ""
    plain = _matches(text, rf"\A-?{before}{after}\Z")
    other = f"({_taken_apart(text, whole, decimals, 'number')})"
    return f"CASE WHEN {plain} THEN {text}::numeric WHEN {_matches(text, _NUMBER)} THEN {other} END"


def _taken_apart(text: str, whole: int, decimals: int, name: str) -> str:
    """The query that parses it: the number is 0.<digits> * 10^point, however it was written."""
    return (
        f"SELECT CASE WHEN digits = '' THEN 0::numeric WHEN length(digits) - point > {decimals} THEN NULL "
        f"WHEN point <= {whole} THEN (sign || '0.' || digits || 'e' || point)::numeric END AS {name} {_placed(text)}"
    )


def _placed(text: str) -> str:
    exponent = (
        f"CASE WHEN coalesce(part[5], '') = '' THEN 0 WHEN length(part[5]) <= {_EXPONENT_DIGITS_MAX} "
        f"THEN (part[4] || part[5])::bigint WHEN part[4] = '-' THEN -1{'0' * _EXPONENT_DIGITS_MAX} "
        f"ELSE 1{'0' * _EXPONENT_DIGITS_MAX} END"
    )
    return (
        "FROM (SELECT CASE sign WHEN '-' THEN '-' ELSE '' END AS sign, rtrim(digits, '0') AS digits, "
        "shift + length(digits) AS point FROM (SELECT part[1] AS sign, "
        "ltrim(part[2] || coalesce(part[3], ''), '0') AS digits, "
        f"{exponent} - length(coalesce(part[3], '')) AS shift "
        f"FROM regexp_match({text}, '{_NUMBER_PARTS}') AS part) AS parts) AS placed"
    )


def _double(text: str) -> str:
    """The nearest double, zero without a sign; none that is infinite."""
    plain = _matches(text, r"\A-?[0-9]{1,17}(?:\.[0-9]{1,17})?\Z")
    size = f"('0.' || left(digits, {_DOUBLE_DIGITS}) || 'e' || point)::numeric"
    other = (
        f"(SELECT CASE WHEN digits = '' OR point < -323 THEN 0e0::float8 WHEN point > 309 THEN NULL "
        f"WHEN {size} >= {DOUBLE_END} THEN NULL WHEN {size} <= {DOUBLE_ZERO} THEN 0e0::float8 "
        f"ELSE {text}::float8 END {_placed(text)})"
    )
    return f"CASE WHEN {plain} THEN {text}::float8 + 0e0 WHEN {_matches(text, _NUMBER)} THEN {other} END"


def _double_quantity(value: str) -> str:
    """A double as the decimal with the fewest digits that parses back to it, at nine decimals."""
    whole, decimals = _QUANTITY_DIGITS
    # Postgres writes them, but takes no number in the middle of two doubles; of whole ones those may be the shortest.
    # Halved, since a bigint ends before 10^19, and all doubles here are even.
    exact = f"((abs({value}) / 2)::bigint * 2::numeric)"
    near = f"div({exact} + unit / 2, unit) * unit"
    shortest = (
        f"coalesce((SELECT {near} FROM unnest(ARRAY[10000, 1000, 100, 10]::numeric[]) AS unit "
        f"WHERE ({near})::float8 = abs({value}) ORDER BY unit DESC LIMIT 1), {exact})"
    )
    return (
        f"CASE WHEN abs({value}) < {2**53} THEN round({value}::text::numeric, {decimals}) "
        f"WHEN abs({value}) < 1e{whole} THEN sign({value})::numeric * {shortest} END"
    )


def _day(text: str) -> str:
    """The date that a text begins with, whose month there is; null where the month has no such day."""
    first = f"make_date(left({text}, 4)::int, substr({text}, 6, 2)::int, 1)"
    number = f"substr({text}, 9, 2)::int"
    last = f"extract(day FROM {first} + interval '1 month' - interval '1 day')"
    return f"CASE WHEN {number} BETWEEN 1 AND {last} THEN {first} + {number} - 1 END"


def _instant(text: str) -> str:
    """Nanoseconds of an RFC 3339 text, of the years that 64 bits hold."""
    days = f"({_day(text)} - DATE '1970-01-01')::bigint"
    time = f"substr({text}, 12, 2)::int * 3600 + substr({text}, 15, 2)::int * 60 + substr({text}, 18, 2)::int"
    minutes = f"(left(right({text}, 5), 2)::int * 60 + right({text}, 2)::int)"
    offset = (
        f"CASE WHEN right({text}, 1) IN ('Z', 'z') THEN 0 WHEN left(right({text}, 6), 1) = '-' THEN {minutes} * -60 "
        f"ELSE {minutes} * 60 END"
    )
    fraction = rf"rpad(coalesce(substring({text} FROM '\.([0-9]+)'), ''), 9, '0')::int"
    first, last = _SECONDS
    fitting = (
        f"(SELECT seconds * {_SECOND} + {fraction} FROM (SELECT {days} * 86400 + {time} - {offset} AS seconds) AS it "
        f"WHERE seconds BETWEEN {first} AND {last})"
    )
    return f"CASE WHEN {_matches(text, _INSTANT)} THEN {fitting} END"


def _floored(number: str, divisor: int) -> str:
    """A whole number divided, towards negative infinity; `/` goes towards zero."""
    return f"(({number} - CASE WHEN {number} < 0 THEN {divisor - 1} ELSE 0 END) / {divisor})"


def _rest(number: str, divisor: int) -> str:
    """The remainder above the next lower multiple; `%` has the sign of the number."""
    return f"(({number} % {divisor} + {divisor}) % {divisor})"
