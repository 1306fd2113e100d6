"""Fields: what the members of an operation ask for, with their arguments read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelock.fold.tables import Table
from tidelock.live.introspection import Introspection
from tidelock.live.selections import Selection, Shown
from tidelock.where import Expression
from tidelock.where.operands import Operand


@dataclass(frozen=True, slots=True)
class Typename:
    """The name of the root type."""

    #: under which it stands in the answer
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Order:
    """A column that rows are ordered by."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a table."""

    name: str
    table: Table
    #: without the tenant, which whoever executes it knows
    where: Expression
    order: tuple[Order, ...]
    limit: int
    offset: int
    shown: Shown


@dataclass(frozen=True, slots=True)
class OneRow:
    """The row with a key."""

    name: str
    table: Table
    #: the values of the key's columns
    key: Mapping[str, Operand]
    #: None: the tenant of who asks
    tenant_id: str | None
    shown: Shown


@dataclass(frozen=True, slots=True)
class Changes:
    """A subscription's field: a table's rows and then what becomes of them."""

    name: str
    table: Table
    #: without the tenant, which whoever executes it knows
    where: Expression
    #: source timestamp from which on to resume, itself included; None: begin with a snapshot
    after: int | None
    selection: Selection


@dataclass(frozen=True, slots=True)
class Call:
    """A field that is about no table: whoever brought it to the schema answers it."""

    name: str
    #: which field it is
    asked: str
    arguments: Mapping[str, Any]
    #: what is wanted of the answer
    shown: Shown


Field = Typename | Introspection | Rows | OneRow | Changes | Call
