"""Following a table: a subscription that resumes where it was, whatever happens to the connection."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from tidelock.client.errors import Refused

_SHAPE = """query ($table: String!) {
  __type(name: $table) { fields { name } }
  __schema { queryType { fields { name args { name } } } }
}"""


@dataclass(frozen=True, slots=True)
class Update:
    """A change of a row. RESET: the position is too old to resume from; discard the rows, a snapshot follows."""

    operation: Literal["INSERT", "UPDATE", "DELETE", "RESET"]
    #: the row, with the requested columns; for a DELETE, the last row
    data: Mapping[str, Any]
    #: the columns that changed
    fields: Sequence[str]
    #: when, by the ledger's clock: nanoseconds as a string
    source_timestamp: str


class Following:
    """Progress of a subscription: where to resume, and what would be a repeat."""

    def __init__(self, table: str, key: Sequence[str], columns: Sequence[str], where: Mapping[str, Any] | None) -> None:
        self._table = table
        self._key = key
        self._columns = list(dict.fromkeys([*key, *columns]))
        self._where = where
        self.forget()

    def forget(self) -> None:
        self._after: str | None = None
        #: `after` is inclusive: changes seen at the last timestamp come again
        self._seen: set[str] = set()

    def request(self) -> dict[str, Any]:
        table, columns = self._table, " ".join(self._columns)
        query = (
            f"subscription ($where: {table}_bool_exp, $after: String) {{ update: {table}(where: $where, after: $after) "
            f"{{ operation fields ts_timestamp data {{ {columns} }} }} }}"
        )
        return {"query": query, "variables": {"where": self._where, "after": self._after}}

    def take(self, said: Mapping[str, Any]) -> Update | None:
        """A message as an update, unless it was already seen."""
        time = said["ts_timestamp"]
        key = json.dumps([said["data"][name] for name in self._key])
        if time != self._after:
            self._after, self._seen = time, set()
        if key in self._seen:
            return None
        self._seen.add(key)
        return Update(said["operation"], said["data"], said["fields"], time)


def shape_request(table: str) -> dict[str, Any]:
    return {"query": _SHAPE, "variables": {"table": table}}


def read_shape(answer: Mapping[str, Any], table: str) -> tuple[list[str], list[str]]:
    """The key and the columns of a table. Raises Refused if there is no such table."""
    if answer.get("errors"):
        raise graphql_refusal(answer["errors"])
    said = answer["data"]
    queries = {field["name"]: field["args"] for field in said["__schema"]["queryType"]["fields"]}
    if said["__type"] is None or f"{table}_by_pk" not in queries:
        tables = [name.removesuffix("_by_pk") for name in queries if name.endswith("_by_pk")]
        available = ", ".join(tables) or "none"
        raise Refused(404, "unknown_table", f"there is no table {table!r}; available: {available}")
    columns = [field["name"] for field in said["__type"]["fields"]]
    key = [argument["name"] for argument in queries[f"{table}_by_pk"]]
    return list(dict.fromkeys(["tenant_id", *key])), columns


async def messages(answer: httpx.Response) -> AsyncGenerator[Mapping[str, Any], None]:
    """The results of a subscription over server-sent events. Raises Refused if one is an error."""
    event = ""
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        if name == "event":
            event = value.strip()
        elif name == "data" and event == "next":
            result = json.loads(value)
            if result.get("errors"):
                raise graphql_refusal(result["errors"])
            yield result["data"]["update"]


def graphql_refusal(errors: Sequence[Mapping[str, Any]]) -> Refused:
    first = errors[0]
    return Refused(400, first.get("extensions", {}).get("code", "unknown"), first["message"])
