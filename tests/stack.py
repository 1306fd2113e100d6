"""One whole Tidelock for all end-to-end tests: `up` with its fold, mirror, triggers and console, and a Kafka beside it.

It takes half a minute to start, so it starts once. Each test has a tenant of its own, or streams that nobody else uses.
Files whose tests use it say `pytestmark = pytest.mark.stack`, which keeps them on one worker.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.faults.processes import until
from tests.faults.servers import ROOT, Server, running

#: what the pages of the docs declare, for whose snippets it is needed
DECLARING = ("README.md", "docs/event-time.md", "docs/reading.md", "docs/subscriptions.md")
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TOPICS = "stack."
_SETTINGS = """
webhook_allow_private = true
webhook_retries = ["100ms", "500ms", "2s", "5s", "10s", "30s"]
webhook_pause_max = "1s"

[kafka]
brokers = ["{kafka}"]
topic_prefix = "{topics}"

# It need not survive a power cut.
[postgres]
shared_buffers = "128MB"
config = {{ fsync = "off" }}

[connect]
pause_max = "200ms"

[spark]
master = "local[2]"
driver_memory = "1GiB"

# Webhooks, and rows of a foreign view.
[streams.trades]
key = "trade_id"
columns = {{ trade_id = "bigint", qty = "int", price = "decimal(18,4)" }}

# Every kind of table, for foreign clients to follow; `orders` is that of the docs.
[streams.calls]
eventtime = {{ column = "occurred_at" }}

[meters.calls]
lateness = "1h"

[windows.calls_10s]
stream = "calls"
window = {{ tumbling = "10s" }}
eventtime = {{ enabled = true }}
group_by = ["customer_ref"]
select = {{ calls = "count(*)", units = "sum(quantity)" }}

"""


def declared() -> str:
    """The definitions of the pages."""
    return "\n".join(text for page in DECLARING for text in _TOML.findall((ROOT / page).read_text()))


class Stack:
    """The server, where its settings are, and its Kafka."""

    def __init__(self, server: Server, config: Path, kafka: str) -> None:
        self.server = server
        self.url = server.url
        self.data = server.data
        self.config = config
        self.kafka = kafka

    def restart_after_a_kill(self) -> None:
        """Killed with everything it runs, Postgres apart, and started again."""
        self.server.kill()
        self.server.start()
        self.server.wait_until_ready(180)

    def until_caught_up(self, reader: str = "fold") -> None:
        """Until what was sent before is folded, or what else the reader does."""
        until(lambda: self._lag(reader) == 0, f"{reader} has caught up", 120)

    def _lag(self, reader: str) -> int | None:
        with suppress(OSError), urlopen(f"{self.url}/readyz", timeout=10) as answer:
            lags = {each["name"]: int(each["lagSequences"]) for each in json.load(answer)["readers"]}
            return lags.get(reader)
        return None


@pytest.fixture(scope="session")
def stack(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    here = tmp_path_factory.mktemp("stack")
    config = here / "tidelock.toml"
    shutil.copytree(jars / "jars", here / "data" / "jars")
    with _dev_kafka(here / "data") as kafka:
        config.write_text(_SETTINGS.format(kafka=kafka, topics=TOPICS) + declared())
        with running(here / "data", config) as server:
            yield Stack(server, config, kafka)
            assert server.stop() == 0, server.log()


@contextmanager
def _dev_kafka(data: Path) -> Iterator[str]:
    """`tidelock dev kafka` as people run it; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelock", "dev", "kafka", "--port", "0", "--data", str(data)],
        cwd=ROOT, env=os.environ | {"NO_COLOR": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"Kafka is up at (\S+)\.", line):
                yield found[1]
                break
        else:
            raise AssertionError("it did not start")
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
