"""Progress: how far an output's time comes by a range, for every tenant that has rows in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from tidelock.fold.kernel.outcomes import Outcome, chained, row_schema
from tidelock.fold.tables import KEY, WATERMARKS
from tidelock.fold.windows.lateness import judgement_table, judgements
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.raises import raises_of, table_of
from tidelock.fold.windows.watermarks import (
    Collection,
    Course,
    Standing,
    eventtime_watermark,
    process_time_watermark,
)

#: what a range's collections have, by stream and tenant, in order
Collections = Mapping[tuple[str, str], Sequence[Collection]]


@dataclass(slots=True)
class Progress:
    """An output in a range, or at a control event."""

    output: Output
    #: before and after, by tenant
    before: Mapping[str, Standing]
    after: dict[str, Standing] = field(default_factory=dict)
    courses: dict[str, Course] = field(default_factory=dict)
    judgements: pa.Table = field(default_factory=lambda: judgement_table([]))

    @property
    def raises(self) -> pa.Table:
        return raises_of({tenant: course.raises for tenant, course in self.courses.items()})

    @property
    def marks(self) -> dict[str, int]:
        """The watermarks that were raised."""
        return {tenant: course.raises[-1][1] for tenant, course in self.courses.items() if course.raises}

    def standing(self, tenant: str) -> Standing:
        return self.after.get(tenant) or self.before[tenant]

    def count(self, name: str, counts: Mapping[str, int], sign: int = 1) -> None:
        """Add to a number of each tenant."""
        for tenant, count in counts.items():
            standing = self.standing(tenant)
            self.after[tenant] = replace(standing, **{name: getattr(standing, name) + sign * count})

    def drained(self, ends: Mapping[str, int]) -> None:
        """Remember how far a drain has closed."""
        for tenant, end in ends.items():
            standing = self.standing(tenant)
            known = standing.closed_through
            self.after[tenant] = replace(standing, closed_through=end if known is None else max(known, end))


def progress_of(output: Output, collections: Collections, stored: Mapping[str, Standing]) -> Progress:
    """What a range's collections do to an output's watermarks."""
    progress = Progress(output, stored)
    late = []
    for (stream, tenant), having in collections.items():
        if stream != output.stream:
            continue
        before = stored.get(tenant, Standing())
        if output.late_tolerance_ns is None:
            course = process_time_watermark(before, having)
        else:
            having = [collection for collection in having if collection.latest is not None]
            if not having:
                continue
            course = eventtime_watermark(before, having, output.late_tolerance_ns)
            late += judgements(tenant, before, having, course)
        progress.courses[tenant] = course
        progress.after[tenant] = course.standing
    progress.judgements = judgement_table(late)
    return progress


def read_collections(found: pa.Table) -> Collections:
    """Collections by stream and tenant, from a table of them."""
    by_tenant: dict[tuple[str, str], list[Collection]] = defaultdict(list)
    columns = ("stream", "tenant_id", "source_timestamp", "rows", "earliest", "latest")
    values = [found[name].to_pylist() for name in columns]
    for stream, tenant, *rest in sorted(zip(*values, strict=True), key=lambda row: row[2]):
        by_tenant[stream, tenant].append(Collection(*rest))
    return by_tenant


def read_standings(stored: pa.Table) -> dict[str, dict[str, Standing]]:
    """Standings by output and tenant."""
    found: dict[str, dict[str, Standing]] = defaultdict(dict)
    names = [name for name in WATERMARKS.stored if name != "window"]
    for row in stored.to_pylist():
        found[row["window"]][row["tenant_id"]] = Standing(**{name: row[name] for name in names})
    return found


def standing_keys(pairs: Sequence[tuple[str, str]]) -> pa.Table:
    """Keys of the watermarks of tenants and outputs."""
    return table_of(pairs, pa.schema([("tenant_id", pa.string()), (KEY, pa.string())]))


def watermark_outcome(progresses: Iterable[Progress], stored: pa.Table) -> Outcome:
    """Watermarks to store. Of ordered output every raise is a change, for those who follow it."""
    rows: list[dict[str, object]] = []
    unwatched = set()
    for progress in progresses:
        output = progress.output
        followed = output.window is None and output.live
        if not followed:
            unwatched.add(output.name)
        for tenant, standing in progress.after.items():
            state = asdict(standing) | {"tenant_id": tenant, KEY: output.name, "window": output.name}
            course = progress.courses.get(tenant)
            raises = course.raises if course is not None else ()
            # By arrival no watermark is stored: the row is as old as its first collection.
            last = raises[0][0] if raises and not output.by_event_time else raises[-1][0] if raises else 0
            if followed:
                rows += [state | {"source_timestamp": at, "watermark": mark} for at, mark in raises]
            if not followed or not raises:
                rows.append(state | {"source_timestamp": last})
    versions = pa.Table.from_pylist(rows, row_schema(WATERMARKS))
    return chained(WATERMARKS, versions, stored).without("window", sorted(unwatched))
