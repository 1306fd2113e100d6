"""Filters as people build them: conditions on columns, joined by and/or, and their form in the API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

Json = dict[str, Any]

#: operator -> what it is called
OPERATORS = {
    "_eq": "=",
    "_neq": "≠",
    "_gt": ">",
    "_gte": "≥",
    "_lt": "<",
    "_lte": "≤",
    "_in": "is one of",
    "_nin": "is none of",
    "_is_null": "is missing",
}
_LISTS = ("_in", "_nin")
#: types of GraphQL whose values are numbers in JSON
_NUMBERS = ("Int", "Float", "bigint", "numeric")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_NAME = re.compile(r"[_A-Za-z][_0-9A-Za-z]*", re.ASCII)


class Unfit(ValueError):
    """The input is not a filter; says why."""


class Unfilled(Unfit):
    """The form is incomplete."""


@dataclass(frozen=True, slots=True)
class FormCondition:
    """A comparison as entered in the form."""

    column: str
    operator: str = "_eq"
    value: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    """Conditions joined by and, or by or."""

    conditions: Sequence[FormCondition]
    any: bool = False

    def where(self, types: Mapping[str, str]) -> Json:
        """The filter. `types`: column -> its type in GraphQL. Raises Unfit."""
        made = [{each.column: {each.operator: _operand(each, types[each.column])}} for each in self.conditions]
        if not made:
            return {}
        if len(made) == 1:
            return made[0]
        if self.any:
            return {"_or": made}
        joined: Json = {}
        for one in made:
            # A column may have several bounds, and one of each kind fits beside the others.
            for column, comparison in one.items():
                if comparison.keys() & joined.get(column, {}).keys():
                    return {"_and": made}
                joined.setdefault(column, {}).update(comparison)
        return joined


def built_of(where: Json) -> Built | None:
    """The conditions of a filter; None if the form cannot show it."""
    joined = where.get("_or", where.get("_and"))
    if joined is not None and len(where) == 1 and isinstance(joined, list):
        parts = joined
    else:
        parts = [{name: value} for name, value in where.items()]
    # Nothing to choose from is never true, and a form without conditions always is.
    if "_or" in where and not parts:
        return None
    conditions: list[FormCondition] = []
    for part in parts:
        if not isinstance(part, dict):
            return None
        found = list(_conditions(part))
        # One part of an `_or` with several comparisons is an and inside it; with none it is always true.
        if None in found or ("_or" in where and len(found) != 1):
            return None
        conditions += [each for each in found if each is not None]
    return Built(conditions, any="_or" in where)


def read_where(text: str) -> Json:
    """Parse a filter written as JSON. Raises Unfit."""
    if not text.strip():
        return {}
    try:
        where = json.loads(text)
    except ValueError as error:
        raise Unfit(f"the filter is not valid JSON: {error}") from None
    if not isinstance(where, dict):
        raise Unfit('a filter must be an object such as {"price": {"_gt": 10}}')
    return where


def literal(value: Any) -> str:
    """A JSON value as GraphQL writes it. Raises Unfit for a name that GraphQL cannot have."""
    match value:
        case dict():
            for name in value:
                if _NAME.fullmatch(name) is None:
                    raise Unfit(f"{name!r} is not a column")
            return "{" + ", ".join(f"{name}: {literal(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(literal, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def subscription(table: str, columns: Sequence[str], where: Json, after: str | None = None) -> str:
    """The text of a subscription, as one would write it."""
    given = [f"where: {literal(where)}"] if where else []
    given += [f'after: "{after}"'] if after is not None else []
    arguments = f"({', '.join(given)})" if given else ""
    indent = " " * 6
    rows = fill(" ".join(columns), width=36, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
    return (
        f"subscription {{\n  {table}{arguments} {{\n    operation\n    fields\n    ts_timestamp\n"
        f"    data {{\n{rows}\n    }}\n  }}\n}}"
    )


def _operand(condition: FormCondition, type_: str) -> Any:
    if condition.operator == "_is_null":
        return condition.value.strip().lower() not in ("no", "false")
    if condition.operator in _LISTS:
        return [_value(part.strip(), condition.column, type_) for part in condition.value.split(",") if part.strip()]
    return _value(condition.value.strip() if type_ != "String" else condition.value, condition.column, type_)


def _value(text: str, column: str, type_: str) -> Any:
    if not text and type_ != "String":
        raise Unfilled(f"{column} needs a value")
    if type_ == "Boolean":
        if text.lower() not in ("true", "false"):
            raise Unfit(f"{column} must be true or false")
        return text.lower() == "true"
    if type_ in _NUMBERS:
        if _NUMBER.fullmatch(text) is None:
            raise Unfit(f"{column} is a number")
        # As text where it could be more than a number of JSON holds.
        return json.loads(text) if type_ in ("Int", "Float") else text
    return text


def _conditions(part: Json) -> Iterator[FormCondition | None]:
    """The comparisons of a part; None if the form cannot show one of them."""
    for column, comparison in part.items():
        if column.startswith("_") or not isinstance(comparison, dict):
            yield None
            continue
        for operator, operand in comparison.items():
            text = _shown(operator, operand) if operator in OPERATORS else None
            yield None if text is None else FormCondition(column, operator, text)


def _shown(operator: str, operand: Any) -> str | None:
    """The value's text in the form; None if the form would read it as something else."""
    if operator == "_is_null":
        return {True: "yes", False: "no"}[operand] if isinstance(operand, bool) else None
    if operator not in _LISTS:
        return _text(operand)
    if not isinstance(operand, list):
        return None
    texts = [text for each in operand if (text := _text(each)) is not None and _stands_in_a_list(text)]
    return ", ".join(texts) if len(texts) == len(operand) else None


def _stands_in_a_list(text: str) -> bool:
    """Whether it survives in a comma-separated list."""
    return text != "" and "," not in text and text == text.strip()


def _text(value: Any) -> str | None:
    if isinstance(value, dict | list | None):
        return None
    return value if isinstance(value, str) else json.dumps(value)
