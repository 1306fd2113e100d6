"""What proofs by kill -9 share: an `up` that is watched, choices that can be repeated, a count of who was killed.

`SOAK_SEED` repeats a run's choices, `SOAK_KILLS` makes a long form longer or shorter.
"""

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg

from tests.faults.processes import gone, until
from tests.faults.servers import Server
from tidelock.errors import TidelockError
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres

_REACHED = "SELECT name, sequence FROM cursors UNION ALL SELECT 'head', ingress_sequence FROM ledger_head"


class Watched(Server):
    """An `up` that is asked how far its readers are."""

    _connection: psycopg.Connection[Any] | None = None

    def health(self) -> dict[str, Any] | None:
        """None while nobody can say."""
        try:
            found = self.client.get("/admin/event-health").json()
            return found if found["readers"] else None
        except (httpx.TransportError, ValueError, KeyError):
            return None

    def positions(self) -> dict[str, int]:
        """How far each reader is; none while nobody can say."""
        found = self.health()
        return {each["name"]: each["ingressSequence"] for each in found["readers"]} if found else {}

    @property
    def database(self) -> Database:
        return Database(EmbeddedPostgres(self.data, None, {}).url)

    def head(self) -> int:
        """Where the ledger ends."""
        return until(self.reached, "Postgres answers")["head"]

    def reached(self) -> dict[str, int]:
        """How far each reader is, and the head, as Postgres has it; nothing while it is away.

        Whoever waits asks often, which costs the server nothing this way.
        """
        try:
            if self._connection is None:
                self._connection = self.database.connect_sync()
            return dict(self._connection.execute(_REACHED).fetchall())
        except (psycopg.Error, TidelockError, OSError):
            self._hang_up()
            return {}

    def wait_until_read(self, sequence: int, *names: str, seconds: float = 300) -> None:
        """By these readers."""

        def read() -> bool:
            found = self.reached()
            return all(found.get(name, -1) >= sequence for name in names)

        until(read, f"read through {sequence}, with the log\n{self.log()}", seconds)

    def _hang_up(self) -> None:
        super()._hang_up()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


S = TypeVar("S", bound=Watched)


@contextlib.contextmanager
def started(kind: Callable[[Path, Path], S], jars: Path, data: Path, config: str) -> Iterator[S]:
    """A server that has just been started, with a config and the jars that it needs; it ends well, if it still runs."""
    shutil.copytree(jars / "jars", data / "jars", dirs_exist_ok=True)
    file = data / "tidelock.toml"
    file.write_text(config)
    server = kind(data, file)
    server.start()
    try:
        yield server
    finally:
        if not gone(server.pid):
            assert server.stop() == 0, server.log()


class Victims:
    """Who is killed, one after another."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.seed = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
        print(f"SOAK_SEED={self.seed}", flush=True)
        self.chance = random.Random(self.seed)
        self._weights = weights
        self._killed: Counter[str] = Counter()

    def draw(self, kills: int) -> Sequence[str]:
        """By their weights, each kind at least once where there are enough."""
        kinds = list(self._weights)
        wanted = [*kinds, *self.chance.choices(kinds, list(self._weights.values()), k=kills)][:kills]
        self.chance.shuffle(wanted)
        return wanted

    def count(self, victim: str) -> None:
        self._killed[victim] += 1

    @property
    def killed(self) -> int:
        return self._killed.total()

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._killed.items()))
        return f"{self._killed.total()} kills ({kinds})"


def kills_of_a_soak(usual: int) -> int:
    return int(os.environ.get("SOAK_KILLS", usual))
