"""GraphQL requests as HTTP carries them: a JSON body, or parameters of the URL."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request as HttpRequest

from tidelock.errors import PayloadTooLarge, RequestError, UnsupportedMedia
from tidelock.live.requests import Request, read_request, read_variables

JSON = "application/json"
#: of the URL; others are none of ours
PARAMETERS = ("query", "operationName", "variables", "extensions")

# A document, and a filter of a MiB in its variables.
_BODY_BYTES_MAX = 2 * 2**20
_CHARSETS = ("", "utf-8", "utf8")


async def read_http(request: HttpRequest) -> Request:
    """What a request asks. Raises RequestError."""
    if request.method == "GET":
        return _of_url(request.scope["query_string"])
    _check_media(request.headers.get("content-type", ""), request.headers.get("content-encoding", ""))
    return read_request(await _body(request))


def _of_url(query: bytes) -> Request:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in given:
            raise RequestError(f"{name[:60]} is given twice", field=name[:60])
        if name in PARAMETERS:
            given[name] = value
    if "query" not in given:
        raise RequestError("there is no query: give a GraphQL document", field="query")
    variables = read_variables(given["variables"]) if given.get("variables") else None
    return Request(given["query"], given.get("operationName") or None, variables, len(query))


def _check_media(content_type: str, encoding: str) -> None:
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if media_type != JSON:
        raise UnsupportedMedia(f"a GraphQL request is {JSON}, not {media_type[:60] or 'without a content type'}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in _CHARSETS:
            raise UnsupportedMedia(f"charset {value[:60]!r} is not taken; send UTF-8")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMedia(f"content encoding {encoding[:60]!r} is not taken here; send it as it is")


async def _body(request: HttpRequest) -> bytes:
    """The body as it comes, and not a chunk more than is taken."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            raise PayloadTooLarge(f"the request is larger than {_BODY_BYTES_MAX} bytes")
    return bytes(body)
