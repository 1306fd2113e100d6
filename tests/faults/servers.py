"""A `tidelock up` in a process of its own, to be killed and started again, and a producer that retries."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tidelock.postgres.ports import free_port

ROOT = Path(__file__).parent.parent.parent


class Server:
    """`tidelock up` on a data directory and a fixed port; without a fold, unless it has a config that asks for one."""

    def __init__(self, data: Path, config: Path | None = None, command: str = "up") -> None:
        """`command`: `serve` runs beside an `up`."""
        self.data = data
        self._command = command
        self._flags = ["--config", str(config)] if config else []
        self._environ = os.environ | ({} if config else {"TIDELOCK_FOLD_ENABLED": "false"})
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._client: httpx.Client | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.data / f"{self._command}.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidelock", self._command, "--data", str(self.data), "--port", str(self.port),
             *self._flags],
            cwd=ROOT, env=self._environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        log.close()

    @property
    def client(self) -> httpx.Client:
        """One for all questions: to make a client takes longer than to ask."""
        if self._client is None:
            self._client = httpx.Client(base_url=self.url, timeout=30)
        return self._client

    def wait_until_ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/readyz").status_code == 200:
                    return
            assert self._process is not None
            assert self._process.poll() is None, f"up ended:\n{self.log()}"
            time.sleep(0.02)
        raise AssertionError(f"up is not ready after {seconds} s:\n{self.log()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._hang_up()
        self._process.wait()

    def kill_postgres(self) -> None:
        pid_file = self.data / "postgres" / "postmaster.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError, IndexError):
            os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGKILL)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        self._hang_up()
        return self._process.wait(timeout=60)

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def log(self) -> str:
        return (self.data / f"{self._command}.log").read_text()[-3000:]


@contextlib.contextmanager
def running(data: Path, config: Path | None = None, command: str = "up") -> Iterator[Server]:
    data.mkdir(parents=True, exist_ok=True)
    server = Server(data, config, command)
    server.start()
    try:
        # A fold starts a Spark and runs every step of its definitions once; on a busy machine that takes its time.
        server.wait_until_ready(180 if config else 60)
        yield server
    finally:
        with contextlib.suppress(Exception):
            server.stop()


class Producer:
    """Sends requests one after another and retries each by the same keys until it is answered."""

    def __init__(self, url: str, name: str) -> None:
        self._url = f"{url}/v1/events"
        self._name = name
        #: key -> sequence it was acknowledged with
        self.acknowledged: dict[str, int] = {}
        self.retries = 0
        #: between requests
        self.pause_s = 0.0
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        chance = random.Random(self._name)
        number = 0
        async with httpx.AsyncClient(timeout=20) as client:
            while not self.stopping.is_set():
                keys = [f"{self._name}/{number}/{position}" for position in range(chance.randint(1, 50))]
                await self._send_until_answered(client, keys)
                number += 1
                await asyncio.sleep(self.pause_s)

    def events(self, keys: list[str]) -> list[dict[str, Any]]:
        """What a request brings."""
        return [{"stream": "s", "idempotencyKey": key, "data": {"text": "x" * 100}} for key in keys]

    async def _send_until_answered(self, client: httpx.AsyncClient, keys: list[str]) -> None:
        events = self.events(keys)
        attempts = 0
        while True:
            attempts += 1
            try:
                response = await client.post(self._url, json={"events": events})
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code == 200:
                self._remember(keys, response.json()["results"], attempts)
                return
            assert response is None or response.status_code in (429, 503), response.text
            self.retries += 1
            await asyncio.sleep(0.02)

    def _remember(self, keys: list[str], results: list[dict[str, Any]], attempts: int) -> None:
        for key, result in zip(keys, results, strict=True):
            expected = {"accepted"} if attempts == 1 else {"accepted", "duplicate"}
            assert result["status"] in expected, result
            self.acknowledged[key] = result["ingressSequence"]
        assert len({result["status"] for result in results}) == 1, "a request is recorded as a whole or not at all"


async def until_acknowledged(producers: Sequence[Producer], more: int) -> None:
    """Until this many more events were acknowledged: moments that follow the load, not the clock."""

    def count() -> int:
        return sum(len(producer.acknowledged) for producer in producers)

    wanted = count() + more
    async with asyncio.timeout(120):
        while count() < wanted:  # noqa: ASYNC110  # a test may poll
            await asyncio.sleep(0.005)
