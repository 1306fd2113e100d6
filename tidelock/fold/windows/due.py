"""Due: when passing time will close or release something, as Postgres finds it in the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from tidelock.columns import BIGINT, STRING
from tidelock.definitions import Count
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.watermarks import EARLIEST
from tidelock.fold.statements import Due, placed
from tidelock.fold.store import Store
from tidelock.postgres.queries import load
from tidelock.tables import WATERMARKS
from tidelock.where.sql import literal

QUERIES = load("tidelock.fold", "sql/windows.sql")

_LATEST = 2**63 - 1


def waits_for_time(outputs: Iterable[Output]) -> bool:
    """Whether anything may ever be due."""
    return any(not output.by_event_time or output.idle_timeout_ns is not None for output in outputs)


def write_due_sql(schema: str, outputs: Sequence[Output]) -> str:
    windows = [
        f"(SELECT min(window_end) FROM {placed(schema, output.open.name)})"
        for output in outputs
        if closes_by_arrival(output) and output.open is not None
    ]
    idle = [
        # In numeric: a timeout of centuries must not stop the fold.
        f"(SELECT min(least(last_row_at::numeric + {output.idle_timeout_ns}, {_LATEST})) "
        f"FROM {placed(schema, WATERMARKS.name)} AS target WHERE {_waiting(schema, output)})"
        for output in outputs
        if output.idle_timeout_ns is not None
    ]
    return QUERIES.text("write_due").format(window_due=_least(windows), idle_due=_least(idle))


def idle_sql(schema: str, output: Output, at: int) -> str:
    """The tenants of an output with something open or held, but no row for its idle timeout."""
    assert output.idle_timeout_ns is not None
    idle = f"last_row_at <= {literal(BIGINT, max(at - output.idle_timeout_ns, -(2**63)))}"
    table = placed(schema, WATERMARKS.name)
    return f"SELECT tenant_id FROM {table} AS target WHERE {idle} AND {_waiting(schema, output)}"


def closes_by_arrival(output: Output) -> bool:
    """Whether its windows end as the ledger's time advances."""
    return not output.by_event_time and output.window is not None and not isinstance(output.window.frame, Count)


def tenants_due(marks: Mapping[str, tuple[int | None, int]], column: str) -> Due:
    """The stored rows that tenants' watermarks have reached. Those before the previous watermarks are already gone.

    With bounds on both sides Postgres uses the index, even with stale statistics.
    """
    values = ", ".join(
        f"({literal(STRING, tenant)}, {literal(BIGINT, EARLIEST if above is None else above)}, {literal(BIGINT, mark)})"
        for tenant, (above, mark) in marks.items()
    )
    within = f"target.{column} > due.above AND target.{column} <= due.moment"
    return Due(f"(VALUES {values}) AS due (tenant_id, above, moment)", f"target.tenant_id = due.tenant_id AND {within}")


def all_due(moment: int) -> Due:
    """The windows of all tenants that end by a given time."""
    return Due(f"(VALUES ({literal(BIGINT, moment)})) AS due (moment)", "target.window_end <= due.moment")


def of_tenants(tenants: Sequence[str] | None, condition: str = "TRUE") -> Due:
    """The stored rows of some tenants, or of all."""
    if tenants is None:
        return Due("(VALUES (TRUE)) AS due (everyone)", condition)
    values = ", ".join(f"({literal(STRING, tenant)})" for tenant in tenants)
    return Due(f"(VALUES {values}) AS due (tenant_id)", f"due.tenant_id = target.tenant_id AND {condition}")


class LedgerTime:
    """Source timestamps of a range, read when needed: windows by arrival follow them, whatever the events."""

    def __init__(self, store: Store, lo: int, hi: int) -> None:
        self._store = store
        self._bounds = {"lo": lo, "hi": hi}

    @cached_property
    def end(self) -> int:
        """The last one."""
        found = self._store.query(QUERIES.text("range_end").format(**self._bounds))["source_timestamp"][0].as_py()
        return 0 if found is None else int(found)

    @cached_property
    def times(self) -> pa.Array:
        """All of them, in order."""
        found = self._store.query(QUERIES.text("range_times").format(**self._bounds))
        return found["source_timestamp"].combine_chunks()


def _waiting(schema: str, output: Output) -> str:
    """Whether a watermark, called `target`, has something open or held."""
    found = [
        f"EXISTS (SELECT FROM {placed(schema, table.name)} AS waiting WHERE waiting.tenant_id = target.tenant_id"
        + (" AND waiting.rows > 0)" if "rows" in table.columns else ")")
        for table in (output.open, output.held)
        if table is not None
    ]
    return f'target."window" = {literal(STRING, output.name)} AND ({" OR ".join(found)})'


def _least(moments: Sequence[str]) -> str:
    return f"least({', '.join(moments)})" if moments else "NULL"
