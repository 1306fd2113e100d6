"""Casts: Spark SQL that parses column values from strings, exactly and without ever failing, and formats them.

Spark's own casts trim, round and, in ANSI mode, raise. So a string is checked before it is
cast: by a pattern of the plain common form, or else of every legal form, which costs more and is rarely needed. What
matches no pattern is null.

Arguments are SQL expressions that are repeated in the result: pass column names, not computations.

- Patterns are raw literals, `r'...'`: the same whatever Spark's settings say about backslashes.
- They end with `\\z`: `$` would let a line break follow. Quantifiers are possessive, so that no string, however
  long, causes backtracking or fills the stack.
- A value used several times in a rare branch is bound by `transform(array(x), name -> ...)[0]`, Spark's only `let`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelock.columns import ColumnType

_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_WEEK = 7 * _DAY
#: range of the values that are summed: all bigints, and doubles of that size
QUANTITY_WHOLE = 19
_QUANTITY_DIGITS = (QUANTITY_WHOLE, 9)

_NUMBER = r"\A[+-]?+[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+\z"
# whole digits, decimals, sign and digits of the exponent
_NUMBER_PARTS = r"\A[+-]?+([0-9]++)(?:\.([0-9]++))?+(?:[eE]([+-]?+)0*+([0-9]*+))?+\z"
# No string that fits into memory has enough digits to balance a longer exponent.
_EXPONENT_DIGITS_MAX = 10
_DOUBLE_MAX = "1.7976931348623157E308D"
_BIGINT_MAX = 2**63 - 1

_DATE = r"\A(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
# Whole years that 64-bit nanoseconds hold: 1678 to 2261.
_YEAR = "(?:167[89]|16[89][0-9]|1[7-9][0-9]{2}|2[01][0-9]{2}|22[0-5][0-9]|226[01])"
_UTC = rf"\A{_YEAR}-[0-9]{{2}}-[0-9]{{2}}T{_TIME}Z\z"
_ANY_ZONE = rf"\A[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[Tt ]{_TIME}(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])\z"
_SECONDS = (-9_214_560_000, 9_214_646_399)

# Below it doubles lie closer than 10^-10, so that at most one number of ten decimals is read as the same double
_FINE_DOUBLES = 2**19
# From here on all doubles are whole
_WHOLE_DOUBLES = 2**53
# Binary digits after the point of those between, at most
_DOUBLE_BITS = 33

_ESCAPED = r'["\\\x00-\x1f]'
# The backslash first, since the other escapes introduce it.
_ESCAPES = (0x5C, 0x22, *range(32))
_SHORT_ESCAPES = {0x22: '"', 0x5C: chr(92), 0x0A: "n", 0x0D: "r", 0x09: "t", 0x0C: "f", 0x08: "b"}


def fits(type_: ColumnType, text: str) -> str:
    """Whether a column can hold the value of a string; true for null. Never null."""
    match type_.name:
        case "string" | "json":
            return "TRUE"
        case "boolean":
            return f"coalesce({text} IN ('true', 'false'), TRUE)"
    plain = f" OR {_matches(text, pattern)}" if (pattern := _plain(type_)) else ""
    return f"({text} IS NULL{plain} OR {_any_form(type_, text)} IS NOT NULL)"


def typed(type_: ColumnType, text: str) -> str:
    """The value of a string; null if there is none, or none that fits. Instants are BIGINT nanoseconds."""
    match type_.name:
        case "string" | "json":
            return text
        case "boolean":
            return f"CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
    pattern = _plain(type_)
    if pattern is None:
        return _any_form(type_, text)
    return f"CASE WHEN {_matches(text, pattern)} THEN {_plain_value(type_, text)} ELSE {_any_form(type_, text)} END"


def canonical(type_: ColumnType, value: str) -> str:
    """The canonical string of a typed value, as in keys and groups."""
    match type_.name:
        case "string" | "json":
            return value
        case "timestamp":
            return instant_text(value)
        case "decimal" if type_.scale:
            # Always with a point, and with as many decimals as the type has.
            return f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM CAST({value} AS STRING)))"
        case "double":
            raise ValueError("a double has no one text")
    return f"CAST({value} AS STRING)"


def transport(type_: ColumnType, value: str) -> str:
    """A typed value as a string that Arrow casts to the column's type without loss; an instant as nanoseconds."""
    return value if type_.name in ("string", "json") else f"CAST({value} AS STRING)"


def quantity(type_: ColumnType | None, value: str) -> str:
    """What a meter aggregates, DECIMAL(38,9): from a typed value, or from the string at a path without a type.

    Null if there is no value, or it has more than 19 digits before or nine after the point. A double is the decimal
    it is printed as, rounded half away from zero at nine digits; nothing else is rounded.
    """
    whole, decimals = _QUANTITY_DIGITS
    if type_ is None:
        plain = _matches(value, _plain_number(whole, decimals))
        exact = _exact(value, whole, decimals)
        return f"CASE WHEN {plain} THEN TRY_CAST({value} AS DECIMAL(38,9)) ELSE CAST({exact} AS DECIMAL(38,9)) END"
    match type_.name:
        case "int" | "bigint":
            return f"CAST({value} AS DECIMAL(38,9))"
        case "double":
            return double_quantity(value)
        case "decimal" if type_.scale <= decimals:
            # Not abs: Spark has only 34 digits of a decimal when it changes its sign.
            legal = f"{value} < 1{'0' * whole}BD AND {value} > -1{'0' * whole}BD"
            fitting = type_.precision - type_.scale <= whole
            cast = f"CAST({value} AS DECIMAL(38,9))"
            return cast if fitting else f"CASE WHEN {legal} THEN TRY_{cast} END"
        case "decimal":
            # Spark rounds decimals of different types to compare them, but not strings.
            return quantity(None, canonical(type_, value))
    return "CAST(NULL AS DECIMAL(38,9))"


def double_quantity(value: str) -> str:
    """A double as the decimal it is printed as: the shortest digits that parse to the same double.

    DECIMAL(38,9), rounded half away from zero at nine digits; null from 10^19 on, and for NaN. Java before 19
    prints more or other digits for some doubles (JDK-4511638), and Spark's cast to decimal uses what Java prints.
    Every result here is the same on any Java; `tests/spark` compares with Python's `repr`, which is exact.
    """
    # Fewer digits than DECIMAL(38,9) has, so that a product has room for all of them: else Spark drops decimals.
    coarse = f"CAST(transform(array(abs({value})), a -> {_coarse_double('a')})[0] AS DECIMAL(29,9))"
    return (
        f"CASE WHEN abs({value}) < {_FINE_DOUBLES}D THEN {_fine_double(value)}"
        f" WHEN abs({value}) < 1E19D THEN CAST({coarse} * {_sign(value)} AS DECIMAL(38,9)) END"
    )


def is_number(text: str) -> str:
    """Whether a string is a number, of any size."""
    return f"COALESCE({_matches(text, _NUMBER)}, FALSE)"


def number_instant(text: str, decimals: int) -> str:
    """Nanoseconds of a number in units of 10^decimals nanoseconds, exactly; null below BIGINT's range.

    Above it, BIGINT's greatest: a time in the future is one, however far.
    """
    beyond = f"CASE WHEN NOT startswith({text}, '-') THEN {_BIGINT_MAX}L END"
    plain = f"coalesce(try_multiply(TRY_CAST({text} AS BIGINT), {10**decimals}L), {beyond})"
    # A product of so few digits is not rounded. The greatest number of them is too large for BIGINT.
    product = f"{_exact(text, 19 - decimals, decimals, saturated=True)} * {10**decimals}BD"
    fitted = f"CASE WHEN product > {_BIGINT_MAX}BD THEN {_BIGINT_MAX}L ELSE TRY_CAST(product AS BIGINT) END"
    exact = let("product", product, fitted)
    return f"CASE WHEN {_matches(text, _plain_number(19, 0))} THEN {plain} ELSE {exact} END"


def whole_instant(value: str, decimals: int) -> str:
    """The same for an integer."""
    product = f"try_multiply(CAST({value} AS BIGINT), {10**decimals}L)"
    return f"CASE WHEN {value} > {_BIGINT_MAX // 10**decimals}L THEN {_BIGINT_MAX}L ELSE {product} END"


def double_instant(value: str, decimals: int) -> str:
    """The same for a double, taken as the decimal it is printed as."""
    number = double_quantity(value)
    text = f"CASE WHEN CAST({number} AS DOUBLE) = {value} THEN {canonical(ColumnType('decimal', 38, 9), number)} END"
    instant = let("written", text, number_instant("written", decimals))
    # Larger doubles are not quantities.
    return f"CASE WHEN {value} >= 1E19D THEN {_BIGINT_MAX}L ELSE {instant} END"


def period_start(period: str, instant: str) -> str:
    """Start of the UTC hour, day, week (from Monday) or month an instant lies in, all in nanoseconds."""
    match period:
        case "hour":
            since = f"pmod({instant}, {3600 * _SECOND}L)"
        case "day":
            since = f"pmod({instant}, {_DAY}L)"
        case "week":
            # 1970 began on a Thursday. The inner pmod leaves room for the three days from Monday.
            since = f"pmod(pmod({instant}, {_WEEK}L) + {3 * _DAY}L, {_WEEK}L)"
        case "month":
            first = f"trunc(date_from_unix_date(CAST({_floored(instant, _DAY)} AS INT)), 'MM')"
            return f"try_multiply(CAST(unix_date({first}) AS BIGINT), {_DAY}L)"
        case _:
            raise ValueError(f"{period} is not a period")
    return f"try_subtract({instant}, {since})"


def json_string(text: str) -> str:
    """A string as JSON."""
    pairs = ", ".join(f"named_struct('given', chr({code}), 'made', {_escape(code)})" for code in _ESCAPES)
    escaped = f"aggregate(array({pairs}), {text}, (made, pair) -> replace(made, pair.given, pair.made))"
    return f"concat('\"', CASE WHEN {_matches(text, _ESCAPED)} THEN {escaped} ELSE {text} END, '\"')"


def json_array(texts: Sequence[str]) -> str:
    """Strings as a compact JSON array; null stays null."""
    members = ", ',', ".join(f"coalesce({json_string(text)}, 'null')" for text in texts)
    return f"concat('[', {members}, ']')"


def instant_text(instant: str) -> str:
    """Nanoseconds as RFC 3339 in UTC with `Z`, the fraction without trailing zeros."""
    # A TIMESTAMP without a zone, so that the session's zone does not matter.
    seconds = f"timestampadd(SECOND, {_floored(instant, _SECOND)}, TIMESTAMP_NTZ '1970-01-01 00:00:00')"
    fraction = f"pmod({instant}, {_SECOND}L)"
    digits = f"trim(TRAILING '0' FROM lpad(CAST({fraction} AS STRING), 9, '0'))"
    ending = f"CASE WHEN {fraction} = 0 THEN 'Z' ELSE concat('.', {digits}, 'Z') END"
    return f"concat(replace(CAST({seconds} AS STRING), ' ', 'T'), {ending})"


def let(name: str, value: str, body: str) -> str:
    """Bind a value that an expression uses several times to a name."""
    return f"transform(array({value}), {name} -> {body})[0]"


def _matches(text: str, pattern: str) -> str:
    return f"{text} RLIKE r'{pattern}'"


def _plain(type_: ColumnType) -> str | None:
    """The pattern of the common form; every string that matches it fits."""
    match type_.name:
        case "int":
            return r"\A-?[0-9]{1,9}\z"
        case "bigint":
            return r"\A-?[0-9]{1,18}\z"
        case "double":
            return r"\A-?[0-9]{1,17}(?:\.[0-9]{1,17})?\z"
        case "decimal":
            return _plain_number(type_.precision - type_.scale, type_.scale)
    # Whether the day exists takes a calendar.
    return None


def _plain_number(whole: int, decimals: int) -> str:
    before = f"[0-9]{{1,{whole}}}" if whole else "0"
    after = rf"(?:\.[0-9]{{1,{decimals}}})?" if decimals else ""
    return rf"\A-?{before}{after}\z"


def _plain_value(type_: ColumnType, text: str) -> str:
    # Adding zero turns -0.0 into the equal 0.0.
    return f"TRY_CAST({text} AS {type_})" + (" + 0D" if type_.name == "double" else "")


def _any_form(type_: ColumnType, text: str) -> str:
    match type_.name:
        case "int" | "bigint":
            # Spark takes a decimal that is not null for one that TRY_CAST makes a whole number of: IS NULL forgets the
            # range.
            bound = 2 ** (31 if type_.name == "int" else 63)
            fitting = f"CASE WHEN whole BETWEEN -{bound}BD AND {bound - 1}BD THEN TRY_CAST(whole AS {type_}) END"
            return let("whole", _exact(text, 19, 0), fitting)
        case "decimal":
            return _exact(text, type_.precision - type_.scale, type_.scale)
        case "double":
            value = f"TRY_CAST({text} AS DOUBLE)"
            return f"CASE WHEN {_matches(text, _NUMBER)} AND abs({value}) <= {_DOUBLE_MAX} THEN {value} + 0D END"
        case "date":
            return f"CASE WHEN {_matches(text, _DATE)} THEN TRY_CAST({text} AS DATE) END"
    assert type_.name == "timestamp"
    return _instant(text)


def _exact(text: str, whole: int, decimals: int, *, saturated: bool = False) -> str:
    """A number in any form, if it has at most this many digits on each side of the point.

    Saturated: a number that is too large becomes the greatest integer instead.
    """

    def part(number: int) -> str:
        return f"regexp_extract({text}, r'{_NUMBER_PARTS}', {number})"

    exponent = (
        f"CASE WHEN {part(4)} = '' THEN 0L WHEN length({part(4)}) <= {_EXPONENT_DIGITS_MAX}"
        f" THEN TRY_CAST(concat({part(3)}, {part(4)}) AS BIGINT)"
        f" WHEN {part(3)} = '-' THEN -1{'0' * _EXPONENT_DIGITS_MAX}L ELSE 1{'0' * _EXPONENT_DIGITS_MAX}L END"
    )
    parts = (
        f"named_struct('sign', CASE WHEN startswith({text}, '-') THEN '-' ELSE '' END,"
        f" 'digits', trim(LEADING '0' FROM concat({part(1)}, {part(2)})),"
        f" 'shift', {exponent} - length({part(2)}))"
    )
    # The number is 0.<digits> * 10^point, however it was written.
    placed = (
        "named_struct('sign', parts.sign, 'digits', trim(TRAILING '0' FROM parts.digits),"
        " 'point', parts.shift + length(parts.digits))"
    )
    type_ = f"DECIMAL({whole + decimals},{decimals})"
    greatest = f" WHEN placed.sign = '' THEN CAST({'9' * whole}BD AS {type_})" if saturated else ""
    value = (
        f"CASE WHEN placed.digits = '' THEN CAST(0 AS {type_})"
        f" WHEN length(placed.digits) - placed.point > {decimals} THEN NULL WHEN placed.point <= {whole}"
        f" THEN TRY_CAST(concat(placed.sign, '0.', placed.digits, 'e', CAST(placed.point AS STRING)) AS {type_})"
        f"{greatest} END"
    )
    return f"CASE WHEN {_matches(text, _NUMBER)} THEN {let('parts', parts, let('placed', placed, value))} END"


def _instant(text: str) -> str:
    """Nanoseconds of an RFC 3339 string."""
    fraction = f"TRY_CAST(rpad(substr({text}, 21, length({text}) - 21), 9, '0') AS INT)"
    utc = (
        f"unix_seconds(TRY_CAST({text} AS TIMESTAMP)) * {_SECOND}L"
        f" + CASE WHEN length({text}) = 20 THEN 0 ELSE {fraction} END"
    )
    # Spark supports no offset beyond 18 hours and no lower-case letters: parse the local time as UTC, then shift it.
    local = f"unix_seconds(TRY_CAST(concat(substr({text}, 1, 10), 'T', substr({text}, 12, 8), 'Z') AS TIMESTAMP))"
    minutes = f"(TRY_CAST(substr({text}, -5, 2) AS INT) * 60 + TRY_CAST(substr({text}, -2, 2) AS INT))"
    sign = f"CASE WHEN substr({text}, -6, 1) = '-' THEN -60 ELSE 60 END"
    moved = f"{local} - CASE WHEN lower(substr({text}, -1, 1)) = 'z' THEN 0 ELSE {minutes} * {sign} END"
    fraction = f"TRY_CAST(rpad(regexp_extract({text}, r'\\.([0-9]++)', 1), 9, '0') AS INT)"
    first, last = _SECONDS
    fitting = f"CASE WHEN seconds BETWEEN {first}L AND {last}L THEN seconds * {_SECOND}L END"
    moved = f"{let('seconds', moved, fitting)} + {fraction}"
    return f"CASE WHEN {_matches(text, _UTC)} THEN {utc} WHEN {_matches(text, _ANY_ZONE)} THEN {moved} END"


def _floored(number: str, divisor: int) -> str:
    """Integer division that rounds down; `div` rounds towards zero."""
    return f"({number} div {divisor}L - CASE WHEN {number} % {divisor}L < 0 THEN 1 ELSE 0 END)"


def _escape(code: int) -> str:
    if code in _SHORT_ESCAPES:
        return f"concat(chr(92), chr({ord(_SHORT_ESCAPES[code])}))"
    return f"concat(chr(92), 'u{code:04x}')"


def _fine_double(value: str) -> str:
    """Any digits that are read as this double round to the same nine decimals, but for one case.

    That is when a number in the middle of two of nine decimals is read as this double too. Having ten decimals it is
    then the shortest that is, so it is the one to round: away from zero.
    """
    rounded = f"CAST({value} AS DECIMAL(38,9))"
    middle = f"CAST(CAST({rounded} AS DECIMAL(18,9)) + 0.0000000005BD * {_sign(value)} AS DOUBLE)"
    away = f"CAST(CAST({rounded} AS DECIMAL(18,9)) + 0.000000001BD * {_sign(value)} AS DECIMAL(38,9))"
    return f"CASE WHEN {middle} = {value} THEN {away} ELSE {rounded} END"


def _coarse_double(value: str) -> str:
    """The number of fewest decimals among those nearest to the double that are read back as it."""
    return (
        f"CASE WHEN {value} >= {_WHOLE_DOUBLES}D THEN {_whole_double(value)}"
        f" WHEN {value} = floor({value}) THEN CAST(CAST({value} AS BIGINT) AS DECIMAL(38,9))"
        f" ELSE {_double_fraction(value)} END"
    )


def _whole_double(value: str) -> str:
    # Halved, since a bigint ends before 10^19.
    exact = f"CAST(CAST({value} / 2 AS BIGINT) AS DECIMAL(19,0)) * 2BD"
    # Doubles of this size are at most 2048 apart: among tens of thousands there is never more than one to choose.
    powers = ", ".join(f"{10**digits}L" for digits in (4, 3, 2, 1))
    near = (
        f"transform(array({powers}), p -> CAST(CAST(({exact} + p div 2) div p AS DECIMAL(19,0)) * p AS DECIMAL(38,9)))"
    )
    found = f"get(filter({near}, near -> CAST(near AS DOUBLE) = {value}), 0)"
    return f"coalesce({found}, CAST({exact} AS DECIMAL(38,9)))"


def _double_fraction(value: str) -> str:
    whole = f"CAST(CAST({value} AS BIGINT) AS DECIMAL(16,0))"
    # The fraction is n / 2^33, exactly; n * 10^d / 2^33 = n * 5^d / 2^(33-d), which bigints hold.
    numerator = f"CAST(({value} - floor({value})) * {2**_DOUBLE_BITS}D AS BIGINT)"
    ways = ", ".join(
        f"named_struct('times', {numerator} * {5**d}L, 'by', {2 ** (_DOUBLE_BITS - d)}L,"
        f" 'unit', CAST({10.0**-d:.10f} AS DECIMAL(11,10)))"
        for d in range(11)
    )
    # Half to even, like Python.
    up = "way.times % way.by * 2 > way.by OR (way.times % way.by * 2 = way.by AND way.times div way.by % 2 = 1)"
    units = f"CAST(way.times div way.by + CASE WHEN {up} THEN 1 ELSE 0 END AS DECIMAL(11,0))"
    near = f"transform(array({ways}), way -> CAST({whole} + {units} * way.unit AS DECIMAL(38,10)))"
    found = f"get(filter({near}, near -> CAST(near AS DOUBLE) = {value}), 0)"
    return f"CAST({found} AS DECIMAL(38,9))"


def _sign(value: str) -> str:
    return f"CASE WHEN {value} < 0 THEN -1BD ELSE 1BD END"
