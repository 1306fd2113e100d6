"""`python -m tidelock.reference commands|api` prints a page of reference."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import typer

from tidelock.cli.main import app
from tidelock.reference.api import api_page
from tidelock.reference.commands import commands_page
from tidelock.settings import Settings


async def _document() -> dict[str, Any]:
    """What a server says of its API: of one that runs for that moment, on a ledger of its own."""
    from tidelock.app import open_server

    def read(url: str) -> dict[str, Any]:
        with urlopen(f"{url}/openapi.json") as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    with tempfile.TemporaryDirectory() as here:
        async with open_server(Settings(data=Path(here), port=0), streams_open=True) as server:
            return await asyncio.to_thread(read, server.url)


PAGES = {
    "commands": lambda: commands_page(typer.main.get_command(app)),
    "api": lambda: api_page(asyncio.run(_document())),
}

if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in PAGES]:
        sys.exit(f"name one page: {', '.join(PAGES)}")
    print(PAGES[sys.argv[1]](), end="")
