"""The kept ledger recomputes, folds on and takes changed definitions; the reference model agrees."""

from __future__ import annotations

import re
import threading
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any

from tests.fold.folding import Picture, differences
from tests.fold.redefine.definition_changes import change, control, fold_all, leftovers, modelled, picture, send
from tests.kept import events as made
from tests.kept.opening import ANCHOR, FORMULAS, definitions, expected
from tidelock.fold.redefine.recomputation import recompute
from tidelock.fold.streams import VALUE_TOLD
from tidelock.ledger.verify import verify
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.triggers.evaluate import Evaluation

FIRST, LAST = definitions("first.toml"), definitions("tidelock.toml")


#: the end of a message about an event's time, which the rows and changes that were kept do not have
VALUE = re.compile(VALUE_TOLD.replace("$", "(?='?$)"), re.DOTALL)


def without_values(found: Picture) -> Picture:
    """A picture whose error rows do not name the value that is no time."""

    def cut(row: Any) -> Any:
        if row is None or "message" not in row:
            return row
        return {**row, "message": VALUE.sub("", row["message"])}

    rows = {place: (time, cut(row)) for place, (time, row) in found.rows.items()}
    changes = [(time, place, cut(old), cut(new)) for time, place, old, new in found.changes]
    return replace(found, rows=rows, changes=changes)


def check(database: Database) -> None:
    """Every row, its source timestamp and every change since the first event."""
    found, wanted = without_values(picture(database)), without_values(modelled(database, FIRST, FORMULAS))
    different = differences(found, wanted)
    assert different == {}, "\n".join(different.values())


def asked(database: Database, query: str) -> list[tuple[Any, ...]]:
    with database.connect_sync() as connection:
        return connection.execute(query.encode()).fetchall()


def test_it_recomputes_and_folds_on_to_what_the_model_says(spark: Spark, upgraded: Database) -> None:
    check(upgraded)

    # Late rows, released rows, a drain and rows after it.
    later = made.Source(22, 1250).requests(4, [12, 20], made.EVERY)
    for request in later[:2]:
        send(upgraded, *request)
    control(upgraded)({"type": "drain"})
    for request in later[2:]:
        send(upgraded, *request)
    ((member,),) = asked(
        upgraded,
        "SELECT key FROM trigger_members JOIN triggers ON triggers.id = trigger_id "
        'JOIN tidelock_tables.trades ON trades.tenant_id = triggers.tenant_id AND "$key" = key '
        "WHERE name = 'large_trades' ORDER BY 1 LIMIT 1",
    )
    send(upgraded, {**made.crossing(int(member), "49", 0), "idempotencyKey": "falls"})
    send(upgraded, *corrections(upgraded))
    fold_all(spark, upgraded, LAST)
    check(upgraded)
    # All of it, what was kept and what came after.
    assert recomputed(spark, upgraded) > expected()["cursors"]["fold"]
    verified = verify(upgraded, ANCHOR, lambda done, end: None)
    assert verified.report.ok, verified.first
    assert asked(upgraded, "SELECT count(*) FROM corrections") == [(90,)]

    told(upgraded, member)

    toml = deepcopy(LAST)
    toml["meters"]["calls_min"] |= {"period": "day", "lateness": "2h"}
    toml["windows"]["reading_sessions"] |= {"window": {"session": "20s"}}
    change(spark, upgraded, toml)
    check(upgraded)
    assert [name for name in leftovers(upgraded) if name != "triggers"] == []


def corrections(database: Database) -> list[dict[str, Any]]:
    """Voids and amendments of events that were kept, of streams without a key."""
    found = asked(
        database,
        "SELECT tenant_id, stream, idempotency_key FROM events WHERE stream IN ('api_calls', 'clicks', 'readings') "
        "AND idempotency_key IS NOT NULL ORDER BY content_hash LIMIT 90",
    )
    ops = ({"op": "void"}, {"op": "amend", "quantity": "7.5"}, {"op": "amend", "data": {"region": "eu", "bytes": 9}})
    return [
        {"tenantId": tenant, "stream": stream, "target": key, **ops[number % 3]}
        for number, (tenant, stream, key) in enumerate(found)
    ]


def recomputed(spark: Spark, database: Database) -> int:
    """Through which sequence folding everything again gave the rows there are."""
    found = recompute(
        spark, database, range_events_max=100_000, stop=threading.Event(), progress=lambda done, end: None
    )
    assert found is not None
    assert found.ok, found.differences
    return found.through_sequence


def told(database: Database, member: str) -> None:
    """A row that matched a trigger when the ledger was kept leaves it; the webhook has the documented id."""
    with database.connect_sync() as connection:
        evaluation = Evaluation(connection, database.connect_sync)
        while evaluation.step():
            pass
    ((time,),) = asked(database, "SELECT source_timestamp FROM events WHERE idempotency_key = 'falls'")
    left = sha256(f"large_trades:{member}:{time}".encode()).hexdigest()[:32]
    assert asked(database, f"SELECT event_type, status FROM outbox WHERE event_id = '{left}'") == [
        ("UNMATCH", "pending")
    ]
