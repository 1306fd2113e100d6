"""The page at /docs: the API to read and to try, with every asset served from here."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

_ASSETS = "/docs/assets"


def install_docs(app: FastAPI, pages: ASGIApp | None = None) -> None:
    """`/docs`, and a redirect there from `/`, unless browsers get `pages`."""

    async def docs(_: Request) -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Tidelock API",
            swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS}/favicon.png",
        )

    assets = files("fastapi_offline").joinpath("static")
    app.mount(_ASSETS, StaticFiles(directory=str(assets)), name="assets")
    app.add_route("/docs", docs, include_in_schema=False)
    app.router.routes.append(Route("/", _Home(pages), methods=["GET"], include_in_schema=False))


class _Home:
    """`/`: pages for browsers, else a link to the docs."""

    def __init__(self, pages: ASGIApp | None) -> None:
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._pages if self._pages is not None and asks_for_pages(scope) else RedirectResponse("/docs")
        await app(scope, receive, send)


def asks_for_pages(scope: Scope) -> bool:
    """Whether the client is a browser: programs are answered by the API only."""
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")
