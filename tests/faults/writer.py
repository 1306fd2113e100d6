"""One writing process of `test_many_writers`: eight writers on one sequencer; prints what was acknowledged."""

import asyncio
import json
import random
import sys
from typing import Any

from tests.recording import judged, sequencing
from tidelock.model import Accepted, Duplicate
from tidelock.postgres.database import Database

WRITERS = 8


async def write(database: Database, process: int, requests: int) -> list[dict[str, Any]]:
    acknowledged: list[dict[str, Any]] = []
    async with sequencing(database, salt="shared") as sequencer:

        async def writer(number: int) -> None:
            chance = random.Random(f"{process}/{number}")
            for request in range(requests):
                keys = [f"{process}/{number}/{request}/{position}" for position in range(chance.randint(1, 20))]
                sent = [{"idempotencyKey": key, "source": f"{process}/{number}"} for key in keys]
                for repeat in range(2 if chance.random() < 0.2 else 1):
                    verdicts = await sequencer.record(judged(sent, sequencer.salts), sequencer.salts.version)
                    kind = Duplicate if repeat else Accepted
                    assert all(isinstance(verdict, kind) for verdict in verdicts), verdicts
                    sequences = [v.ingress_sequence for v in verdicts if isinstance(v, Accepted | Duplicate)]
                    acknowledged.append({"keys": keys, "sequences": sequences})

        await asyncio.gather(*(writer(number) for number in range(WRITERS)))
    return acknowledged


if __name__ == "__main__":
    url, process_number, request_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(asyncio.run(write(Database(url), process_number, request_count))))
