"""Fields: what the members of an operation ask for, with their arguments read and checked."""

from __future__ import annotations

from dataclasses import dataclass

from tidelock.fold.tables import Table
from tidelock.live.selections import Selection
from tidelock.where import Expression


@dataclass(frozen=True, slots=True)
class Changes:
    """A subscription's field: a table's rows and then what becomes of them."""

    #: under which it stands in the answer
    name: str
    table: Table
    #: without the tenant, which whoever executes it knows
    where: Expression
    #: source timestamp from which on to resume, itself included; None: begin with a snapshot
    after: int | None
    selection: Selection
