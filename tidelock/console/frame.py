"""The frame around every page: navigation, the visitor, and the message when the API does not answer.

Also the page of an empty ledger.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import Client, ui
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidelock import __version__
from tidelock.console.api import Api, ApiError
from tidelock.console.icons import svg
from tidelock.console.parts.charts import Chart
from tidelock.console.parts.texts import empty, panel
from tidelock.console.site import ENTRIES, SITE, Entry, Site, entry_of
from tidelock.errors import RequestError
from tidelock.http.access import Grant
from tidelock.model import ALL_TENANTS

logger = logging.getLogger(__name__)

# The API may be slow; a waiting page shows that in its tab, one that gave up would be useless.
_BUILD_S = 40.0

Builder = Callable[..., Awaitable[None]]

_LOOKED_S = 2.0
_FIRST = """curl -s {home}/v1/events {key}-H 'content-type: application/json' \\
  -d '{{"stream":"api_calls","customerRef":"cus_1","quantity":"1.5"}}'"""


class Visit:
    """One opening of a page: its visitor, and the API for them."""

    def __init__(self, site: Site, request: Request, grant: Grant, keyed: bool) -> None:
        self.api: Api = site.api(request)
        self.query = request.query_params
        self.path = request.url.path
        #: the address by which the visitor reached this server
        self.home = str(request.base_url).rstrip("/")
        #: the only tenant the visitor sees; None: all
        self.tenant: str | None = None if grant.tenant_id == ALL_TENANTS else grant.tenant_id
        self.scopes = grant.scopes
        #: API keys exist, so the visitor has signed in
        self.keyed = keyed
        self._visible = True
        self._trouble: ui.element | None = None

    def every(self, seconds: float, refresh: Callable[[], Awaitable[None]]) -> ui.timer:
        """Run regularly, beginning now, while the page is visible. The timer can be paused (`deactivate`)."""

        async def turn() -> None:
            if self._visible:
                await self.tried(refresh)

        return ui.timer(seconds, turn)

    def soon(self, draw: Callable[[], Awaitable[None]]) -> None:
        """Draw this here after the page has loaded: slow parts must not delay it."""
        place = ui.element("div").style("display: contents")

        async def drawn() -> None:
            with place:
                await draw()

        ui.timer(0, lambda: self.tried(drawn), once=True)

    async def tried(self, work: Callable[[], Awaitable[Any]]) -> bool:
        """Run it; an error of the API is shown in the frame. Returns whether it succeeded."""
        try:
            await work()
        except ApiError as error:
            self.tell(error)
            return False
        self.tell(None)
        return True

    def tell(self, error: ApiError | None) -> None:
        if error is not None and error.status == 401:
            ui.navigate.to("/login")
        if self._trouble is None or (error is None and not self._trouble.visible):
            return
        self._trouble.set_visibility(error is not None)
        if error is not None:
            self._trouble.clear()
            with self._trouble:
                ui.html(svg("alert"), sanitize=False)
                ui.label(error.message)

    def listen(self, trouble: ui.element) -> None:
        """Events that the browser sends."""
        self._trouble = trouble
        ui.on("tl_visible", lambda event: setattr(self, "_visible", bool(event.args)))
        ui.on("tl_theme", lambda _: _redraw())


def page(path: str, *, title: str, about: str = "") -> Callable[[Builder], Builder]:
    """Declare a page of the console: the function builds the content of the frame."""

    def register(build: Builder) -> Builder:
        async def opened(request: Request, **places: str) -> Response | None:
            site: Site = request.scope[SITE]
            try:
                grant = await site.grant(request)
            except RequestError:
                return RedirectResponse("/login", 303)
            visit = Visit(site, request, grant, await site.keyed())
            with _frame(visit, title, about):
                await _build(build, visit, places)
            return None

        # NiceGUI and FastAPI read from the signature what is in the path.
        given = list(inspect.signature(build).parameters.values())[1:]
        known = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
        places = [parameter.replace(annotation=str) for parameter in given]
        opened.__signature__ = inspect.Signature([known, *places])  # type: ignore[attr-defined]
        opened.__annotations__ = {"request": Request, **{parameter.name: str for parameter in places}}
        ui.page(path, title=f"{title} · Tidelock", response_timeout=_BUILD_S)(opened)
        return build

    return register


async def _build(build: Builder, visit: Visit, places: dict[str, str]) -> None:
    try:
        await build(visit, **places)
    except ApiError as error:
        empty("alert", "This could not be loaded", error.message)
    except Exception:
        logger.exception("a page of the console failed")
        empty("alert", "This page failed", "This is a bug in Tidelock; see the server's log.")


def _frame(visit: Visit, title: str, about: str) -> ui.element:
    """The frame; returns the element for the page itself."""
    here = entry_of(visit.path)
    ui.colors(primary="#0e7490", dark="#15181d", dark_page="#0d0f12")
    with ui.element("div").classes("tl-frame"):
        _side(visit, here)
        with ui.element("main").classes("tl-main"):
            with ui.element("header").classes("tl-top"):
                with ui.element("div").classes("tl-titles"):
                    ui.html("", sanitize=False, tag="h1").set_content(title)
                    if about:
                        ui.label(about).classes("tl-about")
                _who(visit)
            trouble = ui.element("div").classes("tl-banner").props('role="alert"')
            trouble.set_visibility(False)
            place = ui.element("div").classes("tl-page")
        _bar(here)
    visit.listen(trouble)
    return place


def _side(visit: Visit, here: Entry | None) -> None:
    with ui.element("nav").classes("tl-side").props('aria-label="Console"'):
        with ui.element("a").classes("tl-brand").props('href="/"'):
            ui.element("span").classes("tl-mark")
            ui.label("Tidelock")
        for entry in ENTRIES:
            _link(entry, here)
        with ui.element("div").classes("tl-side-end"):
            with ui.element("a").classes("tl-nav").props('href="/docs"'):
                ui.html(svg("book"), sanitize=False)
                ui.label("API")
            ui.label(f"version {__version__}").classes("tl-version")


def _bar(here: Entry | None) -> None:
    """The navigation bar of phones, at the bottom."""
    with ui.element("nav").classes("tl-bar").props('aria-label="Console"'):
        for entry in ENTRIES:
            if entry.near:
                _link(entry, here)
        with ui.element("details").classes("tl-more"):
            with ui.element("summary").classes("tl-nav" + (" tl-here" if here and not here.near else "")):
                ui.html(svg("more"), sanitize=False)
                ui.label("More")
            with ui.element("div").classes("tl-sheet"):
                for entry in ENTRIES:
                    if not entry.near:
                        _link(entry, here)


def _link(entry: Entry, here: Entry | None) -> None:
    with (
        ui.element("a").classes("tl-nav" + (" tl-here" if entry is here else "")).props(f'href="{entry.path}"') as link
    ):
        if entry is here:
            link.props('aria-current="page"')
        ui.html(svg(entry.icon), sanitize=False)
        ui.label(entry.title)


def _who(visit: Visit) -> None:
    with ui.element("div").classes("tl-who"):
        tenant = ui.label(visit.tenant or "all tenants").classes("tl-tenant")
        tenant.props(f'title="{"Only this tenant is shown" if visit.tenant else "All tenants are shown"}"')
        with ui.element("button").classes("tl-round").props('data-tl-theme aria-label="Light or dark"'):
            ui.html(svg("moon"), sanitize=False).classes("tl-when-light")
            ui.html(svg("sun"), sanitize=False).classes("tl-when-dark")
        if visit.keyed:
            with ui.element("a").classes("tl-round").props('href="/logout" aria-label="Sign out" title="Sign out"'):
                ui.html(svg("out"), sanitize=False)


def _redraw() -> None:
    """Charts resolve colours when they are drawn: let them look up the tokens again."""
    client: Client = ui.context.client
    for element in list(client.elements.values()):
        if isinstance(element, Chart):
            element.update()


async def nothing_recorded(visit: Visit) -> bool:
    """Whether the ledger is empty; if so, show that until it has an event."""
    if await _head(visit):
        return False
    first = _FIRST.format(home=visit.home, key="-H 'authorization: Bearer KEY' " if visit.keyed else "")
    with panel():
        empty("pulse", "The ledger is empty", "Send an event, and this page comes to life.", first)

    async def look() -> None:
        if await _head(visit):
            ui.navigate.reload()

    visit.every(_LOOKED_S, look)
    return True


async def _head(visit: Visit) -> int:
    health = await visit.api.get("/admin/event-health", tenantId=visit.tenant)
    return int(health["head"]["ingressSequence"])
