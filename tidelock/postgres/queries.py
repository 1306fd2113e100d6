"""SQL in `.sql` files: every query has a name and says what it is for.

-- name: read_head
-- Where the ledger ends now.
SELECT ingress_sequence FROM ledger_head
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = "-- name:"


@dataclass(frozen=True, slots=True)
class _Query:
    description: str
    sql: bytes


class Queries(Mapping[str, bytes]):
    """Queries by name. Bytes, because psycopg accepts str only as literals, which files are not."""

    def __init__(self, origin: str, queries: Mapping[str, _Query]) -> None:
        self._origin = origin
        self._queries = queries

    def __getitem__(self, name: str) -> bytes:
        return self._query(name).sql

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def __len__(self) -> int:
        return len(self._queries)

    def description(self, name: str) -> str:
        return self._query(name).description

    def text(self, name: str) -> str:
        """For clients other than psycopg."""
        return self._query(name).sql.decode()

    def _query(self, name: str) -> _Query:
        try:
            return self._queries[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._queries, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise KeyError(f"no query {name!r} in {self._origin}{hint}") from None


@cache
def load(package: str, path: str) -> Queries:
    """The queries of one file of `package`; read once."""
    return parse(files(package).joinpath(path).read_text(encoding="utf-8"), origin=f"{package}/{path}")


def parse(text: str, origin: str) -> Queries:
    """Raises ValueError for a file that is not of the form above."""
    preamble, *parts = _split(text)
    if any(line.strip() and not line.startswith("--") for line in preamble):
        raise ValueError(f"{origin}: there is SQL before the first '{_NAME}' line")
    queries: dict[str, _Query] = {}
    for heading, *lines in parts:
        name = heading.removeprefix(_NAME).strip()
        if not name.isidentifier():
            raise ValueError(f"{origin}: {name!r} is not a name for a query")
        if name in queries:
            raise ValueError(f"{origin}: two queries are named {name}")
        queries[name] = _read(lines, f"{origin}: query {name}")
    return Queries(origin, queries)


def _split(text: str) -> list[list[str]]:
    """The text before the first name, then each query's lines from its name on."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith(_NAME):
            parts.append([])
        parts[-1].append(line)
    return parts


def _read(lines: list[str], where: str) -> _Query:
    count = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    description = " ".join(line.removeprefix("--").strip() for line in lines[:count]).strip()
    sql = "\n".join(lines[count:]).strip().removesuffix(";").rstrip()
    if not description:
        raise ValueError(f"{where} has no description: write one in '-- ' lines below its name")
    if not sql:
        raise ValueError(f"{where} has no SQL")
    return _Query(description, sql.encode())
