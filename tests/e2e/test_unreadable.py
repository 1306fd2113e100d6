"""An event whose data no reader can parse, recorded before such were refused: it spoils only itself, wherever it is."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow.parquet as pq
import pytest
import websockets

from tests.budgets import HANG_S
from tests.cli.commandline import json_lines, run
from tests.conftest import Databases
from tests.fold import folded
from tests.recording import sequencing
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import Definitions, parse_definitions
from tidelock.ingest.admit import Admission
from tidelock.ingest.wire import WireEvent
from tidelock.ledger.sequencer import Sequencer
from tidelock.postgres.database import Database
from tidelock.triggers.payloads import data_forms

Json = dict[str, Any]

#: Python's own json takes no integer of more digits than 4,300
DIGITS = "7" * 4301
DATA = f'{{"n":{DIGITS},"region":"eu"}}'
DEFINITIONS = parse_definitions(
    {
        "streams": {"docs": {"key": "k", "columns": {"k": "string", "doc": "json"}}},
        "meters": {"calls": {"aggregation": "sum", "value": "data.n", "period": "month"}},
    }
)


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    """A ledger of three events, of which the second is unreadable."""
    async with start(definitions=DEFINITIONS) as serving:
        await _record(serving.ledger.sequencer, '{"n":1}', DATA, '{"n":3}')
        yield serving


async def _record(sequencer: Sequencer, *data: str) -> None:
    """As it was done before: nobody looked for long numbers."""
    admission = Admission(Definitions(), sequencer.salts, True, 1 << 20, 64)
    events = [
        admission.admit(WireEvent(stream="calls", customer_ref="c", causality_key="run", ts=f"2026-01-0{day}T00:00:00Z",
                                  data=msgspec.Raw(text.encode())))
        for day, text in enumerate(data, 1)
    ]  # fmt: skip
    await sequencer.record(events, sequencer.salts.version)


def check(items: list[Json]) -> None:
    assert [item["data"] for item in items] == [{"n": 1}, None, {"n": 3}]
    assert items[1]["error"]["code"] == "unreadable"
    assert "longer than 400 characters" in items[1]["error"]["message"]
    assert "error" not in items[0]
    assert "error" not in items[2]


async def test_lists_give_it_without_its_data_and_its_neighbours_as_they_are(client: httpx.AsyncClient) -> None:
    check((await client.get("/admin/events")).json()["items"])
    check((await client.get("/admin/events?order=desc")).json()["items"][::-1])
    caused = (await client.get("/v1/causality/run")).json()["items"]
    check(caused)
    assert [item["parent"] for item in caused] == [None] * 3


async def test_the_live_tail_continues_past_it(server: Serving) -> None:
    async with websockets.connect(server.url.replace("http", "ws") + "/ws?after=0") as tail:
        check([json.loads(await asyncio.wait_for(tail.recv(), HANG_S)) for _ in range(3)])


async def test_commands_show_it_and_exports_have_its_text(server: Serving, tmp_path: Path) -> None:
    database = server.ledger.database
    exported = {name: tmp_path / f"events.{name}" for name in ("jsonl", "csv", "parquet")}

    def commands() -> str:
        for path in exported.values():
            assert run(database, "export", "--output", path).exit_code == 0
        trace = run(database, "trace", "run")
        assert trace.exit_code == 0
        check(json_lines(run(database, "trace", "run", "--json")))
        return trace.output

    shown = await asyncio.to_thread(commands)
    assert "unreadable" in shown
    lines = [json.loads(line) for line in exported["jsonl"].read_text().splitlines()]
    assert [line["data"] for line in lines] == [{"n": 1}, DATA, {"n": 3}]
    assert [line.get("error", {}).get("code") for line in lines] == [None, "unreadable", None]
    with exported["csv"].open(newline="") as file:
        assert [row["data"] for row in csv.DictReader(file)] == ['{"n":1}', DATA, '{"n":3}']
    table = pq.read_table(exported["parquet"])
    assert table["data"].to_pylist() == ['{"n":1}', DATA, '{"n":3}']
    assert "error" not in table.column_names


def test_an_import_of_what_was_exported_refuses_it_alone(databases: Databases, tmp_path: Path) -> None:
    async def fill(database: Database) -> None:
        async with sequencing(database) as sequencer:
            await _record(sequencer, '{"n":1}', DATA, '{"n":3}')

    with databases() as ledger, databases() as other:
        asyncio.run(fill(ledger))
        for name, accepted in (("a.jsonl", 2), ("b.csv", 0), ("c.parquet", 0)):
            assert run(ledger, "export", "--output", tmp_path / name).exit_code == 0
            told = json.loads(run(other, "import", tmp_path / name, "--json").stdout)
            assert (told["accepted"], told["duplicates"], told["rejected"]) == (accepted, 2 - accepted, 1), told


async def test_rows_of_tables_have_null_where_such_json_would_be(server: Serving, client: httpx.AsyncClient) -> None:
    async with await server.ledger.database.connect() as connection:
        tables = await folded.define(connection, DEFINITIONS)
        await folded.create(connection, tables["docs"])
        for key, doc in (("a", '{"n":1}'), ("b", DATA), ("c", "[3]")):
            await folded.put(connection, tables["docs"], "default", key, {"k": key, "doc": doc})
    items = (await client.get("/v1/tables/docs")).json()["items"]
    assert [item["doc"] for item in items] == [{"n": 1}, None, [3]]
    answer = await client.post("/graphql", json={"query": "{ docs(order_by: [{k: asc}]) { k doc } }"})
    assert [row["doc"] for row in answer.json()["data"]["docs"]] == [{"n": 1}, None, [3]]
    encoded = data_forms(tables["docs"].columns)({"k": "b", "doc": DATA, "tenant_id": "default"})
    assert json.loads(encoded) == {"k": "b", "doc": None}


async def test_the_same_event_is_refused_now(client: httpx.AsyncClient) -> None:
    body = f'[{{"stream":"calls","data":{DATA}}},{{"stream":"calls","ts":{DIGITS}}}]'
    answer = (await client.post("/v1/events", content=body, headers={"content-type": "application/json"})).json()
    assert [(each["error"]["code"], each["error"]["field"]) for each in answer["results"]] == [
        ("invalid_event", "data"),
        ("invalid_event", "ts"),
    ]
