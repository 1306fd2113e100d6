"""The SQL of a filter: one condition with its literals inside, for Postgres and for Spark.

The text is the same for both except for two things, which a `Dialect` defines: how a name is quoted, and what makes
strings compare by code point. Spark does so by default. Postgres needs `COLLATE "C"`, which is added to order
comparisons only: equal strings are equal in every collation here, and an index can serve them.

Literals are written so that every reader parses them as the same value, whatever its settings:

- Text: quotes and backslashes never appear inside one (Spark escapes with them, Postgres does not), nor `$` (Spark
  replaces `${...}` in SQL text), `%`, `{` and `}` (psycopg and `str.format` would take them for parameters). Such
  characters are inserted by `translate`.
- Decimals are cast to the column's own type: for a wider common type Spark would round.
- Doubles have an exponent: for Spark that means double, and Postgres converts a number next to a double.
- Instants are bigint nanoseconds, as everywhere inside; the expression of a timestamp column must be one too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from itertools import chain
from typing import cast

from tidelock.columns import ColumnType
from tidelock.where.expressions import TRUE, All, Bound, Either, Expression, IsNull, OneOf
from tidelock.where.operands import Operand

#: name and type of a column -> its expression, of that type
ColumnSql = Callable[[str, ColumnType], str]

_UNSAFE = "'\\$%{}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between databases."""

    #: the quote around a name, doubled inside it
    quote: str
    #: follows a string that is compared by order
    code_points: str

    def quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote


POSTGRES = Dialect('"', ' COLLATE "C"')
SPARK = Dialect("`", "")


def where_sql(expression: Expression, dialect: Dialect, column: ColumnSql | None = None) -> str:
    """The condition, in brackets where needed. `column` replaces the quoted names by other expressions."""

    def named(name: str, type_: ColumnType) -> str:
        return dialect.quoted(name) if column is None else f"({column(name, type_)})"

    def written(node: Expression) -> str:
        match node:
            case All(parts=()) | Either(parts=()):
                return "TRUE" if node == TRUE else "FALSE"
            case All(parts=parts):
                return "(" + " AND ".join(map(written, parts)) + ")"
            case Either(parts=parts):
                return "(" + " OR ".join(map(written, parts)) + ")"
            case IsNull():
                return f"{named(node.column, node.type)} IS {'NOT ' if node.negated else ''}NULL"
            case OneOf():
                return named(node.column, node.type) + _membership(node)
            case Bound():
                collation = dialect.code_points if node.type.name == "string" else ""
                operand = literal(node.type, node.operand)
                return f"{named(node.column, node.type)}{collation} {node.operator} {operand}"

    return written(expression)


def literal(type_: ColumnType, operand: Operand) -> str:
    """An operand as SQL."""
    match type_.name:
        case "string":
            return _text(cast(str, operand))
        case "decimal":
            return f"CAST({operand:f} AS DECIMAL({type_.precision},{type_.scale}))"
        case "double":
            return _double(cast(float, operand))
        case "boolean":
            return "TRUE" if operand else "FALSE"
        case "date":
            return f"DATE '{cast(date, operand).isoformat()}'"
        case _:
            return str(operand)


def _membership(node: OneOf) -> str:
    operands = [literal(node.type, operand) for operand in node.operands]
    if len(operands) == 1:
        return f" {'<>' if node.negated else '='} {operands[0]}"
    return f" {'NOT ' if node.negated else ''}IN ({', '.join(operands)})"


def _double(number: float) -> str:
    text = repr(number)
    return text if "e" in text else text + "e0"


def _text(text: str) -> str:
    unsafe = [character for character in _UNSAFE if character in text]
    if not unsafe:
        return f"'{text}'"
    # One call for any number: a chain of concatenations would be as deep as the string is long.
    unused = (c for c in map(chr, chain(range(0xE000, 0xF900), range(0x10000, 0x110000))) if c not in text)
    stand_ins = [next(unused) for _ in unsafe]
    safe = text.translate({ord(c): stand_in for c, stand_in in zip(unsafe, stand_ins, strict=True)})
    meant = " || ".join(f"chr({ord(character)})" for character in unsafe)
    return f"translate('{safe}', '{''.join(stand_ins)}', {meant})"
