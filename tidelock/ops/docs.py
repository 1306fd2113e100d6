"""The page at /docs: the API to read and to try, with every asset served from here."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

_ASSETS = "/docs/assets"


def install_docs(app: FastAPI) -> None:
    """`/docs`, and a way there from `/`."""

    async def docs(_: Request) -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Tidelock API",
            swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS}/favicon.png",
        )

    async def home(_: Request) -> Response:
        return RedirectResponse("/docs")

    assets = files("fastapi_offline").joinpath("static")
    app.mount(_ASSETS, StaticFiles(directory=str(assets)), name="assets")
    app.add_route("/docs", docs, include_in_schema=False)
    app.add_route("/", home, include_in_schema=False)
