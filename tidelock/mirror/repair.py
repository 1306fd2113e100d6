"""Repair: mirror again from a sequence on. What was mirrored from there on counts no more."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg

from tidelock.errors import SettingsError
from tidelock.mirror.cluster import Cluster
from tidelock.mirror.ranges import QUERIES, read_position
from tidelock.mirror.readback import Readback
from tidelock.settings import Settings


def restart_from(connection: psycopg.Connection[Any], settings: Settings, first: int) -> int:
    """Move the cursor back so that a sequence and all behind it are sent again; gives where it stands then.

    A mirror that runs sees that its cursor was moved, and goes on from there.
    """
    position = read_position(connection)
    if not 1 <= first <= position:
        mirrored = f"sequences 1 to {position} are mirrored" if position else "nothing is mirrored yet"
        raise SettingsError(f"--from {first}: {mirrored}; name one of them")
    there = Cluster(settings.kafka, settings.event_bytes_max).look()
    topics = {name: count for name, count in there.items() if name.startswith(settings.kafka.topic_prefix)}
    with closing(Readback(settings.kafka)) as readback:
        ends = readback.ends(topics)
    with connection.transaction():
        row = connection.execute(QUERIES["restart"], {"first": first}).fetchone()
        connection.execute(QUERIES["forget_from"], (first,))
        connection.cursor().executemany(QUERIES["repaired"], [(*place, end) for place, end in ends.items()])
        connection.execute(QUERIES["wake"])
    assert row is not None, "whoever has a position has a cursor"
    return int(row[0])
