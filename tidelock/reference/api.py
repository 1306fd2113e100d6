"""The page of the API: every operation with what it takes and answers, and the shapes of both, out of its document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_ABOUT = """# API

<!-- Made by `make docs` from the document that a server has at /openapi.json. Change it there. -->

A server shows the same at `/docs`, to be tried, and has it as OpenAPI at `/openapi.json`. In addition to what is
listed here:

- `/ws?after=S&stream&customerRef&causalityKey&tenantId` is a WebSocket: one event per text frame, everything above S,
  or from now on ([reading](reading.md)).
- `/graphql` gives [subscriptions](subscriptions.md), by WebSocket (`graphql-transport-ws`) and by server-sent events.

Requests carry `Authorization: Bearer KEY` once there is a key ([security](security.md)). Every answer that is no
success is an [ErrorBody](#errorbody): what was wrong, where, what to do. 429 and 503 name in `Retry-After` when to come
back; events sent again are settled by their keys. Timestamps are RFC 3339 in UTC, decimals are strings, a source
timestamp is a string of nanoseconds.
"""


def api_page(document: Json) -> str:
    """The page, by the document's groups."""
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, described in operations.items():
            groups.setdefault(described["tags"][0], []).append(_operation(method.upper(), path, described))
    parts = [_ABOUT, *(f"\n## {group}\n{''.join(operations)}" for group, operations in groups.items())]
    shapes = document["components"]["schemas"]
    return "".join(
        [*parts, _errors(document), "\n## Shapes\n", *(_shape(name, shapes[name]) for name in sorted(shapes))]
    )


def _operation(method: str, path: str, described: Json) -> str:
    lines = [f"\n### `{method} {path}`\n", f"{described['summary']}. {described.get('description', '')}".strip(), ""]
    if parameters := described.get("parameters"):
        lines += ["| parameter | | |", "|---|---|---|", *map(_parameter, parameters), ""]
    if body := described.get("requestBody"):
        taken = [f"- `{kind}`: {_kind(content['schema'])}" for kind, content in body["content"].items()]
        lines += ["Takes", "", *taken, ""]
    answers = [_answer(status, response) for status, response in described["responses"].items() if status < "400"]
    refused = [status for status in described["responses"] if status >= "400"]
    lines += [f"Answers {'; '.join(answers)}."]
    return "\n".join([*lines, *([f"Errors: {', '.join(refused)}."] if refused else []), ""])


def _parameter(parameter: Json) -> str:
    needed = " Required." if parameter.get("required") else ""
    about = _cell(parameter.get("description", ""))
    place = "" if parameter["in"] == "query" else f" ({parameter['in']})"
    return f"| `{parameter['name']}`{place} | {_cell(_kind(parameter['schema']))} | {about}.{needed} |"


def _answer(status: str, response: Json) -> str:
    kinds = dict.fromkeys(_kind(content["schema"]) for content in response.get("content", {}).values())
    return f"{status}: {' or '.join(kinds) or 'no body'}"


def _errors(document: Json) -> str:
    """What each status means that is no success, wherever it is answered."""
    found: dict[str, dict[str, None]] = {}
    for operations in document["paths"].values():
        for described in operations.values():
            for status, response in described["responses"].items():
                found.setdefault(status, {})[_cell(response["description"])] = None
    rows = [f"| {status} | {'; '.join(found[status])} |" for status in sorted(found) if status >= "400"]
    return "\n".join(["\n## Errors\n", "| status | |", "|---|---|", *rows, ""])


def _shape(name: str, schema: Json) -> str:
    lines = [f"\n### {name}\n", _cell(schema.get("description", "")), ""]
    required = set(schema.get("required", ()))
    rows = [
        f"| `{member}` | {_cell(_kind(of))} | {_cell(of.get('description', ''))} |"
        for member, of in schema.get("properties", {}).items()
    ]
    if rows:
        lines += ["| member | | |", "|---|---|---|", *rows, ""]
    if required and required < set(schema.get("properties", {})):
        lines += [f"Always there: {', '.join(f'`{member}`' for member in sorted(required))}.", ""]
    return "\n".join(lines)


def _kind(schema: Json) -> str:
    """A schema in words, short enough for a cell."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join("null" if value is None else f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    return " or ".join(dict.fromkeys(_kinds(schema))) or "any JSON"


def _kinds(schema: Json) -> Iterator[str]:
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield _kind(choice)
    named = schema.get("type", ())
    for kind in [named] if isinstance(named, str) else named:
        if kind == "array":
            yield f"list of {_kind(schema.get('items', {}))}"
        elif kind == "object" and set(schema.get("properties", ())) == set(schema.get("required", ())) != set():
            members = (f"`{name}`: {_kind(of)}" for name, of in schema["properties"].items())
            yield f"object with {', '.join(members)}"
        else:
            yield f"{kind}, {schema['format']}" if "format" in schema and kind == "string" else str(kind)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
