"""The page at /docs: the API to read and to try, with every asset served from here."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

_ASSETS = "/docs/assets"
# Light or dark as the console is: what was chosen there, else what the system says.
_THEME = """
<script>
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  function apply() {
    const chosen = localStorage.getItem("tidelock-theme");
    const dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.classList.toggle("dark-mode", dark);
    document.documentElement.style.colorScheme = dark ? "dark" : "light";
  }
  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
})();
</script>
<style>
html .swagger-ui .renderedMarkdown code { padding: 1px 5px; overflow-wrap: anywhere; }
html .swagger-ui .renderedMarkdown p { line-height: 1.7; }
</style>"""


def install_docs(app: FastAPI, pages: ASGIApp | None = None) -> None:
    """`/docs`, and a redirect there from `/`, unless browsers get `pages`."""

    async def docs(_: Request) -> Response:
        made = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Tidelock API",
            swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS}/favicon.png",
        )
        return HTMLResponse(bytes(made.body).decode().replace("<head>", f"<head>{_THEME}", 1))

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
