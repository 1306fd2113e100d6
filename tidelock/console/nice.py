"""NiceGUI, of which a process has one: set up once, running while some server has visitors."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.resources import files

from fastapi import FastAPI
from nicegui import Client, core, ui
from nicegui import app as nicegui_app
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tidelock.console.site import ENTRIES, asset_url, nowhere

# Messages kept for a browser that was disconnected for some seconds.
_HISTORY_MESSAGES = 50

_using = 0
_lifetime: AbstractAsyncContextManager[object] | None = None
_changing = asyncio.Lock()


def _set_up() -> FastAPI:
    config = nicegui_app.config
    # WebSockets only: a proxy that blocks them blocks subscriptions too.
    config.socket_io_js_transports = ["websocket"]
    core.sio.eio.transports = ["websocket"]
    # The choice in this browser overrides the system's; theme.js has applied it already.
    chosen = "setDark(document.documentElement.dataset.theme === 'dark');"
    config.vue_config_script = config.vue_config_script.replace("setDark(dark);", chosen)
    for entry in ENTRIES:
        importlib.import_module(f"tidelock.console.pages.{entry.module}")
    carrier = FastAPI()
    ui.run_with(
        carrier,
        title="Tidelock",
        favicon=(files("tidelock.console") / "assets" / "mark.svg").read_text(),
        dark=None,
        language="en-US",
        binding_refresh_interval=None,
        message_history_length=_HISTORY_MESSAGES,
        tailwind=False,
        show_welcome_message=False,
    )
    styles = "".join(f'<link rel="stylesheet" href="{asset_url(name)}">' for name in ("theme.css", "pages.css"))
    ui.add_head_html(f'<script src="{asset_url("theme.js")}"></script>{styles}', shared=True)
    nicegui_app.add_exception_handler(404, _not_found)
    return carrier


async def _not_found(request: Request, _: Exception) -> Response:
    """A path that is not a page does not count as a visit."""
    return nowhere(request.url.path)


_carrier = _set_up()

#: the application for pages, their files and their socket
app: ASGIApp = nicegui_app


def visitors() -> int:
    """Open pages, including those just requested."""
    return len(Client.instances)


@asynccontextmanager
async def running() -> AsyncIterator[None]:
    """Keeps NiceGUI running inside the block."""
    global _using
    async with _changing:
        if _using == 0:
            await _start()
        _using += 1
    try:
        yield
    finally:
        async with _changing:
            _using -= 1
            if _using == 0:
                await _stop()


async def _start() -> None:
    global _lifetime
    _lifetime = _carrier.router.lifespan_context(_carrier)
    await _lifetime.__aenter__()


async def _stop() -> None:
    assert _lifetime is not None
    for client in list(Client.instances.values()):
        client.delete()
    await core.sio.shutdown()
    # A second start in this process needs it again; without the event, a start that no browser
    # ever connects to can be shut down too.
    core.sio.eio.start_service_task = True
    core.sio.eio.service_task_event = None
    await _lifetime.__aexit__(None, None, None)
