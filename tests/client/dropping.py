"""A line that breaks: requests arrive, some answers do not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def dropping(port: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A proxy's URL, and how many answers it has lost so far: every third one."""
    lost: list[int] = [0]
    answers = itertools.count()
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.create_task(_copy(reader, upstream))
        try:
            with suppress(ConnectionError):
                while data := await upstream_reader.read(65536):
                    if next(answers) % 3 == 0:
                        lost[0] += 1
                        break
                    writer.write(data)
                    await writer.drain()
        finally:
            asking.cancel()
            for each in (writer, upstream):
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lost
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
