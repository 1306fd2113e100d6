"""CSV: a page of a list as RFC 4180 has it, with the page after it in a `Link` header."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

CSV = "text/csv"
_QUOTED = frozenset('",\r\n')


def wants_csv(request: Request) -> bool:
    """Whether the client asks for CSV, and likes nothing else better that there is."""
    best: dict[str, float] = {}
    for part in request.headers.get("accept", "").split(","):
        media_type, *parameters = (word.strip().lower() for word in part.split(";"))
        best[media_type] = next((_quality(word) for word in parameters if word.startswith("q=")), 1.0)
    wanted = best.get(CSV, 0.0)
    return wanted > 0 and wanted >= best.get("application/json", 0.0)


def csv_response(
    request: Request, names: Sequence[str], items: Iterable[Mapping[str, object]], following: str | None
) -> Response:
    """A page with a line of names. `following`: the cursor of the page after, which has such a line too."""
    lines = [csv_line(names), *(csv_line([_text(item[name]) for name in names]) for item in items)]
    headers = {"vary": "accept"}
    if following is not None:
        given = [(name, value) for name, value in parse_qsl(request.url.query, keep_blank_values=True)]
        query = urlencode([*((name, value) for name, value in given if name != "cursor"), ("cursor", following)])
        headers["link"] = f'<{quote(request.url.path)}?{query}>; rel="next"'
    return Response("".join(lines).encode(), media_type=f"{CSV}; header=present", headers=headers)


def csv_line(cells: Iterable[str | None]) -> str:
    """Nothing is an empty cell, an empty text a quoted one."""
    return ",".join(map(_cell, cells)) + "\r\n"


def _cell(text: str | None) -> str:
    if text is None:
        return ""
    if not text or not _QUOTED.isdisjoint(text) or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _quality(parameter: str) -> float:
    try:
        return float(parameter.removeprefix("q="))
    except ValueError:
        return 0.0
