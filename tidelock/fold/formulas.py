"""Formulas: the expressions of calculated columns, read and written again as Spark SQL that cannot fail.

The language is a part of Spark SQL, in which a formula is a function of its row and nothing else: literals, columns,
arithmetic, comparisons, `CASE`, `CAST` and the functions below. What would raise in Spark is null here: overflow,
division by zero, failed casts. It is a whitelist, because nobody can list everything that could raise or change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelock.columns import ColumnType
from tidelock.where.sql import literal


def _functions(least: int, most: int, names: str) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(names.split(), (least, most))


#: name -> minimum and maximum number of arguments; written unchanged
_FUNCTIONS: Mapping[str, tuple[int, int]] = {
    **_functions(1, 1, "upper lower trim ltrim rtrim length char_length reverse initcap md5 sha1 ascii"),
    **_functions(1, 1, "year quarter month day dayofmonth dayofweek weekday dayofyear last_day unix_date"),
    **_functions(1, 1, "hour minute second timestamp_micros unix_micros unix_seconds"),
    **_functions(1, 1, "isnull isnotnull sqrt exp ln log10 sign"),
    **_functions(2, 2, "nullif ifnull nvl instr startswith endswith contains left right datediff power pow"),
    **_functions(2, 3, "substr substring"),
    **_functions(3, 3, "nvl2 if"),
    **_functions(2, 50, "coalesce greatest least concat concat_ws"),
}
#: those written differently
_GUARDED: Mapping[str, tuple[int, int]] = {
    **_functions(1, 1, "abs floor ceil ceiling"),
    **_functions(1, 2, "round bround"),
    **_functions(2, 2, "mod date_add date_sub add_months"),
    **_functions(3, 3, "replace translate"),
}
_OPERATORS = "+ - * / % div || = <> < <= > >= AND OR NOT IN BETWEEN LIKE IS NULL CASE CAST"
ALLOWED = f"{_OPERATORS}, and the functions {' '.join(sorted({*_FUNCTIONS, *_GUARDED}))}"
_TYPES = ("string", "int", "bigint", "smallint", "tinyint", "double", "float", "boolean", "date", "timestamp")
_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
_TRIED = {"+": "try_add", "-": "try_subtract", "*": "try_multiply", "/": "try_divide", "%": "try_mod"}
_LENGTH_MAX = 10_000
# Each encloses all before it, and Spark's parser recurses.
_OPERATORS_MAX = 200
_DIGITS = re.compile("[0-9]{1,9}")
_DEPTH_MAX = 50
_DAYS_MAX = 4_000_000
_MONTHS_MAX = 100_000
_ROUND_MAX = 38

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:BD|[LSYDF])?(?![A-Za-z0-9_.]))"
    r"|(?P<text>'(?:[^'\\]|'')*+'|\"(?:[^\"\\]|\"\")*+\")"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)|`(?P<quoted>[^`]+)`"
    r"|(?P<sign><=>|<>|!=|<=|>=|==|\|\||[-+*/%=<>(),]))"
)
_WORDS = frozenset(("and", "or", "not", "in", "between", "like", "is", "null", "true", "false", "as", "div"))
_WORDS |= {"case", "when", "then", "else", "end", "cast", "try_cast"}

#: name of Spark's type of an expression, such as `bigint` or `decimal(10,2)`
TypeOf = Callable[[str], str]


class FormulaRefused(ValueError):
    """A formula that cannot be used, with the reason."""


@dataclass
class Formula:
    """A parsed formula."""

    sql: str = ""
    #: operands that must be of a type: SQL, pattern of the type's name, what it is for
    demands: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str

    def is_(self, *texts: str) -> bool:
        return self.kind in ("word", "sign") and self.text.lower() in texts


_END = _Token("end", "the end")
NUMERIC = r"tinyint|smallint|int|bigint|float|double|decimal\(\d+,\d+\)"
_INTEGRAL = "tinyint|smallint|int|bigint"
_TEXT = "string"


def read_formula(text: str, column: Callable[[str], str | None], type_of: TypeOf) -> Formula:
    """Parse a formula; `column` returns the SQL of a name, None if there is no such column. Raises Refused."""
    if len(text) > _LENGTH_MAX:
        raise FormulaRefused(f"is longer than {_LENGTH_MAX} characters")
    reader = _Reader(_tokens(text), column, type_of)
    reader.formula.sql = reader.any_of(0)
    if reader.next is not _END:
        raise reader.unexpected()
    return reader.formula


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            hint = " (strings cannot contain backslashes)" if "\\" in text else ""
            raise FormulaRefused(f"{text[at:].strip()[:20]!r} is not understood{hint}")
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind]))
        at = match.end()
    return found


class _Reader:
    """Reads tokens from left to right, and writes SQL."""

    def __init__(self, tokens: list[_Token], column: Callable[[str], str | None], type_of: TypeOf) -> None:
        self.formula = Formula()
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._operators = 0
        self._column = column
        self._type_of = type_of

    @property
    def next(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def unexpected(self) -> FormulaRefused:
        return FormulaRefused(f"{self.next.text!r} is not expected here")

    def any_of(self, level: int) -> str:
        """An expression of operators that bind at least this tightly: OR, AND, NOT, comparison, sum, product, sign."""
        match level:
            case 0 | 1:
                word = ("or", "and")[level]
                parts = [self.any_of(level + 1)]
                while self._took(word):
                    parts.append(self.any_of(level + 1))
                return parts[0] if len(parts) == 1 else "(" + f" {word.upper()} ".join(parts) + ")"
            case 2:
                return f"(NOT {self._deeper(2)})" if self._took("not") else self._comparison()
            case 3:
                return self._chain(("+", "-", "||"), 4)
            case 4:
                return self._chain(("*", "/", "%", "div"), 5)
        return self._signed()

    def _deeper(self, level: int) -> str:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise FormulaRefused(f"is nested more than {_DEPTH_MAX} deep")
        try:
            return self.any_of(level)
        finally:
            self._depth -= 1

    def _chain(self, signs: tuple[str, ...], level: int) -> str:
        left = self.any_of(level)
        while self.next.is_(*signs):
            sign = self._take().text.lower()
            self._count()
            left = self._operation(sign, left, self.any_of(level))
        return left

    def _count(self) -> None:
        self._operators += 1
        if self._operators > _OPERATORS_MAX:
            raise FormulaRefused(f"has more than {_OPERATORS_MAX} operators")

    def _operation(self, sign: str, left: str, right: str) -> str:
        if sign == "||":
            return f"concat({left}, {right})"
        for operand in (left, right):
            self._demand(operand, _INTEGRAL if sign == "div" else NUMERIC, f"for {sign}")
        if sign in _TRIED:
            return f"{_TRIED[sign]}({left}, {right})"
        # The least bigint divided by -1 is one too large.
        divided = "CASE WHEN v.b = -1 THEN try_subtract(0L, v.a) WHEN v.b <> 0 THEN v.a div v.b END"
        return _let(f"named_struct('a', {left}, 'b', {right})", divided)

    def _comparison(self) -> str:
        left = self.any_of(3)
        while True:
            if self.next.kind == "sign" and self.next.text in _COMPARISONS:
                self._count()
                sign = _COMPARISONS[self._take().text]
                left = f"({left} {sign} {self.any_of(3)})"
            elif self._took("is"):
                self._count()
                negated = "NOT " if self._took("not") else ""
                what = self._take()
                if not what.is_("null", "true", "false"):
                    raise FormulaRefused("IS must be followed by NULL, TRUE or FALSE")
                left = f"({left} IS {negated}{what.text.upper()})"
            elif self.next.is_("not", "in", "between", "like"):
                self._count()
                negated = "NOT " if self._took("not") else ""
                left = f"({left} {negated}{self._range(left)})"
            else:
                return left

    def _range(self, left: str) -> str:
        if self._took("in"):
            self._expect("(")
            return f"IN ({', '.join(self._arguments())})"
        if self._took("between"):
            low = self.any_of(3)
            self._expect("and")
            return f"BETWEEN {low} AND {self.any_of(3)}"
        self._expect("like")
        if self.next.kind != "text":
            raise FormulaRefused("LIKE needs a string in quotes")
        self._demand(left, _TEXT, "for LIKE")
        return f"LIKE {self._text(self._take())}"

    def _signed(self) -> str:
        if self._took("+"):
            return self._deeper(5)
        if not self._took("-"):
            return self._single()
        if self.next.kind == "number":
            return f"(-{self._take().text})"
        return self._negated(self._deeper(5), "TRUE")

    def _negated(self, operand: str, condition: str) -> str:
        """With its sign changed where a condition on it, `v`, is true."""
        self._demand(operand, NUMERIC, "for a sign")
        type_ = self._type_of(operand)
        negative = "-v"
        if re.fullmatch(_INTEGRAL, type_):
            # The smallest has no counterpart.
            negative = "try_subtract(0, v)"
        elif type_.startswith("decimal(3"):
            # Spark has only 34 digits of a decimal when it changes its sign.
            text = "CAST(v AS STRING)"
            negative = f"TRY_CAST(CASE WHEN v < 0 THEN substr({text}, 2) ELSE concat('-', {text}) END AS {type_})"
        return _let(operand, f"CASE WHEN {condition} THEN {negative} ELSE v END")

    def _single(self) -> str:
        token = self._take()
        match token.kind:
            case "number":
                return token.text
            case "text":
                return self._text(token)
            case "quoted":
                return self._named(token.text)
        if token.is_("("):
            inner = self._deeper(0)
            self._expect(")")
            return inner
        word = token.text.lower()
        if token.kind == "word" and self.next.is_("(") and word not in _WORDS:
            return self._call(word)
        if word in ("true", "false", "null"):
            return word.upper()
        if word == "case":
            return self._case()
        if word in ("cast", "try_cast"):
            return self._cast()
        if word == "date" and self.next.kind == "text":
            return f"TRY_CAST({self._text(self._take())} AS DATE)"
        if token.kind == "word" and word not in _WORDS:
            return self._named(token.text)
        self._at -= token is not _END
        raise self.unexpected()

    def _named(self, name: str) -> str:
        found = self._column(name)
        if found is None:
            raise FormulaRefused(f'there is no column "{name}"')
        return found

    def _case(self) -> str:
        subject = "" if self.next.is_("when") else self._deeper(0) + " "
        sql = ""
        while self._took("when"):
            condition = self._deeper(0)
            self._expect("then")
            sql += f"WHEN {condition} THEN {self._deeper(0)} "
        if self._took("else"):
            sql += f"ELSE {self._deeper(0)} "
        self._expect("end")
        if not sql.startswith("WHEN"):
            raise FormulaRefused("CASE needs WHEN")
        return f"CASE {subject}{sql}END"

    def _cast(self) -> str:
        self._expect("(")
        operand = self._deeper(0)
        self._expect("as")
        type_ = self._type()
        self._expect(")")
        if self._type_of(operand) == _TEXT and type_ not in ("string", "boolean", "date", "timestamp"):
            # Spark would take seconds for 1e-999999999.
            sane = r"length(v) <= 400 AND NOT v RLIKE r'[eE][+-]?0*[1-9][0-9]{3}'"
            return _let(operand, f"TRY_CAST(CASE WHEN {sane} THEN v END AS {type_})")
        return f"TRY_CAST({operand} AS {type_})"

    def _type(self) -> str:
        token = self._take()
        name = token.text.lower()
        if name in ("decimal", "numeric"):
            digits = ["10", "0"]
            if self._took("("):
                digits = [self._take().text]
                digits.append(self._take().text if self._took(",") else "0")
                self._expect(")")
            if not (
                all(map(_DIGITS.fullmatch, digits)) and 0 < int(digits[0]) <= 38 and int(digits[1]) <= int(digits[0])
            ):
                raise FormulaRefused("a decimal has the type decimal(p,s) with p from 1 to 38 and s from 0 to p")
            return f"DECIMAL({int(digits[0])},{int(digits[1])})"
        if token.kind != "word" or name not in _TYPES:
            raise FormulaRefused(f"cannot cast to {token.text!r}; available types: {' '.join(_TYPES)} decimal(p,s)")
        return name

    def _call(self, name: str) -> str:
        self._expect("(")
        arguments = [] if self._took(")") else self._arguments()
        least, most = _FUNCTIONS.get(name) or _GUARDED.get(name) or (0, -1)
        if most < 0:
            raise FormulaRefused(f"the function {name} is not allowed")
        if not least <= len(arguments) <= most:
            raise FormulaRefused(f"{name} takes {least if least == most else f'{least} to {most}'} arguments")
        return self._guarded(name, arguments) if name in _GUARDED else f"{name}({', '.join(arguments)})"

    def _guarded(self, name: str, arguments: list[str]) -> str:
        first, *others = arguments
        match name:
            case "mod":
                return self._operation("%", first, others[0])
            case "abs":
                return self._negated(first, "v < 0")
            case "floor" | "ceil" | "ceiling":
                self._demand(first, NUMERIC, f"for {name}")
                # Beyond bigint, Spark would return the largest one.
                fine = self._type_of(first) not in ("double", "float")
                return f"{name}({first})" if fine else _let(first, f"CASE WHEN abs(v) < 9.2E18D THEN {name}(v) END")
            case "round" | "bround":
                self._demand(first, NUMERIC, f"for {name}")
                if others and not (others[0].isdigit() and int(others[0]) <= _ROUND_MAX):
                    raise FormulaRefused(f"{name} takes a number of digits from 0 to {_ROUND_MAX}")
                return f"{name}({', '.join(arguments)})"
            case "replace" | "translate":
                if any(token.kind != "text" for token in self._tokens[self._at - 4 : self._at - 1 : 2]):
                    raise FormulaRefused(f"{name} needs strings in quotes as its second and third arguments")
                return f"{name}({', '.join(arguments)})"
        self._demand(others[0], "tinyint|smallint|int", f"for {name}")
        self._demand(first, "date", f"for {name}")
        most = _MONTHS_MAX if name == "add_months" else _DAYS_MAX
        pair = f"named_struct('a', {first}, 'n', {others[0]})"
        return _let(pair, f"CASE WHEN v.n BETWEEN -{most} AND {most} THEN {name}(v.a, v.n) END")

    def _arguments(self) -> list[str]:
        found = [self._deeper(0)]
        while self._took(","):
            found.append(self._deeper(0))
        self._expect(")")
        return found

    def _text(self, token: _Token) -> str:
        quote = token.text[0]
        return literal(ColumnType("string"), token.text[1:-1].replace(quote * 2, quote))

    def _demand(self, sql: str, types: str, purpose: str) -> None:
        self.formula.demands.append((sql, types, purpose))

    def _take(self) -> _Token:
        token = self.next
        self._at += token is not _END
        return token

    def _took(self, text: str) -> bool:
        found = self.next.is_(text)
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._took(text):
            raise FormulaRefused(f"expected {text.upper()} before {self.next.text!r}")


def _let(value: str, body: str) -> str:
    return f"transform(array({value}), v -> {body})[0]"
