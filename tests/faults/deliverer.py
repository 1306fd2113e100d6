"""One delivering process of `test_delivery_kills`, until it is killed."""

import asyncio
import sys

from tests.triggers.outboxes import delivering
from tidelock.postgres.database import Database
from tidelock.triggers.attempts import Schedule
from tidelock.triggers.dispatch import Terms
from tidelock.triggers.lanes import Care


class Lasting(Schedule):
    """Quick retries, as a test needs them; what waits for its endpoint is not given up for that."""

    @property
    def horizon_s(self) -> float:
        return 3600.0


TERMS = Terms(Lasting([0.05] * 12, retry_after_max_s=1), Care(16, 5, 0.3), requests_max=200, rows_max=50)


async def deliver(database: Database) -> None:
    async with delivering(database, TERMS, timeout_s=0.3, lease_s=1):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(deliver(Database(sys.argv[1])))
