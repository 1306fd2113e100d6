"""The page that asks for an API key: a form, without NiceGUI."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from starlette.responses import HTMLResponse

from tidelock.errors import RequestError

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidelock</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="{favicon}"><script src="{script}"></script><link rel="stylesheet" href="{style}"></head>
<body class="tl-login"><form method="post" action="/login?next={wanted}">
<div class="tl-brand"><span class="tl-mark"></span>Tidelock</div>
<h1>Sign in with an API key</h1>
<p>It needs the scope <code>read</code>. It stays on the server; this browser keeps a session only.</p>
<label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="current-password" spellcheck="false" autofocus required>
{trouble}<button type="submit">Open the console</button>
<p class="tl-faint">No key yet? <code>tidelock keys create --tenant NAME --scope read</code></p>
</form></body></html>
"""


def page(wanted: str, trouble: str | None = None, *, status: int = 200) -> HTMLResponse:
    from tidelock.console.site import asset_url

    text = _PAGE.format(
        favicon=asset_url("mark.svg"),
        script=asset_url("theme.js"),
        style=asset_url("theme.css"),
        wanted=quote(wanted, safe=""),
        trouble=f'<p class="tl-trouble" role="alert">{escape(trouble)}</p>' if trouble else "",
    )
    return HTMLResponse(text, status, headers={"cache-control": "no-store"})


def trouble(error: RequestError, key: str) -> str:
    """Why a key was not taken, for the one who typed it."""
    if not key:
        return "Type an API key."
    if error.http_status == 401:
        return "This key is not known, or was revoked. Check it for missing characters."
    return f"This key does not open the console: {error.message}."


def local_path(wanted: str | None) -> str:
    """Where to go afterwards: on this server only."""
    ours = wanted is not None and wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if wanted is not None and ours else "/"
