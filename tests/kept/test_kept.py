"""The kept ledger has what it claims to have, and this version gives the same answers about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from standardwebhooks import Webhook

from tests.cli.commandline import json_lines, run
from tests.kept import opening
from tests.kept.opening import difference, expected
from tests.triggers.receiver import receiving
from tidelock.app import open_server
from tidelock.fold.redefine.catalog import unit_hashes
from tidelock.postgres.database import Database
from tidelock.postgres.migrate import migrate, status

MEBIBYTE = 1 << 20
KEYED = ("trades", "positions", "typed", "things", "notes")
WINDOWS = (
    "trades_tumbling", "trades_hopping", "trades_by_five", "reading_sessions", "idle_pulses", "beat_hops",
    "click_sessions", "arrivals_tumbling", "arrivals_session", "arrivals_by_seven", "arrivals_hopping",
    "arrivals_long_session",
)  # fmt: skip
#: their windows close years later
OPEN_ONLY = {"arrivals_hopping", "arrivals_long_session"}


def asked(database: Database, query: str) -> list[tuple[Any, ...]]:
    with database.connect_sync() as connection:
        return connection.execute(query.encode()).fetchall()


def one(database: Database, query: str) -> Any:
    return asked(database, query)[0][0]


def bearer(label: str) -> dict[str, str]:
    return {"authorization": f"Bearer {expected()['keys'][label]}"}


def test_what_is_kept_is_small() -> None:
    assert sum(path.stat().st_size for path in opening.DATA) <= 2 * MEBIBYTE


def test_it_has_every_kind_of_table_and_row(unchanged: Database) -> None:
    """Fails if somebody regenerates it with less in it."""
    for name in (*KEYED, *WINDOWS, "readings_ordered", "quotes_ordered", "counters", "counter_groups", "adjustments"):
        assert one(unchanged, f"SELECT count(*) FROM tidelock_tables.{name}") > 0 or name in OPEN_ONLY, name
    metrics = {row[0] for row in asked(unchanged, "SELECT DISTINCT metric FROM tidelock_tables.counters")}
    assert metrics == set(opening.definitions("tidelock.toml")["meters"])
    adjusted = {row[0] for row in asked(unchanged, "SELECT DISTINCT metric FROM tidelock_tables.adjustments")}
    assert {"calls", "calls_max", "calls_last", "bytes"} <= adjusted
    codes = {row[0] for row in asked(unchanged, "SELECT DISTINCT code FROM tidelock_tables.error_rows")}
    assert codes == {
        "invalid_column", "invalid_event_time", "future_event_time", "missing_quantity", "missing_customer",
    }  # fmt: skip
    late = {row[0] for row in asked(unchanged, "SELECT DISTINCT reason FROM tidelock_tables.late_rows")}
    assert late == {"late", "drained"}
    held = asked(unchanged, 'SELECT "window" FROM tidelock_tables.watermarks WHERE buffer_size > 0')
    assert {"readings_ordered", "quotes_ordered", "trades_by_five"} <= {row[0] for row in held}
    assert one(unchanged, 'SELECT count(*) FROM tidelock_tables."readings_ordered$held"') > 0
    for name in OPEN_ONLY:
        assert one(unchanged, f'SELECT count(*) FROM tidelock_tables."{name}$open"') > 0, f"{name} has open windows"
    unclosed = [f"SELECT '{name}' FROM tidelock_tables.{name}" for name in OPEN_ONLY]
    assert len(asked(unchanged, " UNION ALL ".join(unclosed))) == 0
    assert one(unchanged, "SELECT window_due IS NOT NULL AND idle_due IS NOT NULL FROM fold_due")
    largest = "SELECT max(abs(quantity)) = 99999999999999999.999999999 FROM events"
    assert one(unchanged, largest)
    assert one(unchanged, "SELECT count(DISTINCT customer_ref) FROM events WHERE customer_ref IN ('', '客户')") == 2
    assert one(unchanged, "SELECT count(*) FROM events WHERE customer_ref IS NULL AND stream = 'api_calls'") > 0
    assert one(unchanged, "SELECT count(*) FROM events WHERE op = 'delete'") > 5
    assert one(unchanged, "SELECT count(*) FROM events WHERE data::text LIKE '%\"messages\"%'") > 0


def test_it_has_a_ledger_with_a_history(unchanged: Database) -> None:
    kinds = "SELECT data->>'type', count(*) FROM events WHERE stream = '_tidelock' GROUP BY 1"
    controls = dict(asked(unchanged, kinds))
    assert set(controls) == {"tick", "drain", "trigger", "definition"}
    assert one(unchanged, "SELECT count(*) FROM events") > 1_000
    assert one(unchanged, "SELECT skipped FROM ledger_head") > 1_000, "the sequence jumped"
    assert one(unchanged, "SELECT count(*) FROM events_default") > 0, "beyond the partitions"
    assert one(unchanged, "SELECT count(*) FROM salts") == 3
    sources = asked(unchanged, "SELECT key_source::text, count(*) FROM events GROUP BY 1")
    assert {"c", "d", None} == {row[0] for row in sources}
    for column in ("causality_key", "correlation_id", "causation_id", "source", "resource_id", "row_key"):
        assert one(unchanged, f"SELECT count({column}) FROM events") > 0, column
    for name in ("imports", "backfills"):
        assert one(unchanged, f"SELECT count(*) FROM {name} WHERE finished") == 1, name
    assert one(unchanged, "SELECT count(*) FILTER (WHERE revoked_at IS NULL) || '/' || count(*) FROM api_keys") == "4/5"
    changed = {row[0] for row in asked(unchanged, "SELECT DISTINCT table_name FROM changes")}
    silent = {"notes", "beat_hops"} | OPEN_ONLY
    assert changed >= {*KEYED, *WINDOWS, "counters", "late_rows", "error_rows", "readings_ordered"} - silent
    assert changed.isdisjoint(silent)
    assert one(unchanged, "SELECT source_timestamp FROM changes_pruned") == 0, "changes from the first event on"
    assert one(unchanged, "SELECT min(last_sequence) FROM changes") < 100


def test_it_has_webhooks_of_every_state(unchanged: Database) -> None:
    states = asked(unchanged, "SELECT status, attempts > 0, count(*) FROM outbox GROUP BY 1, 2 ORDER BY 1, 2")
    assert {row[:2] for row in states} == {("dead", True), ("delivered", True), ("pending", False), ("pending", True)}
    assert one(unchanged, "SELECT count(*) FROM delivery_attempts WHERE http_status = 500") > 5
    assert one(unchanged, "SELECT count(*) FROM trigger_members") > 0
    triggers = dict(asked(unchanged, "SELECT name, enabled FROM triggers"))
    assert not triggers["switched_off"]
    assert not triggers["receiver_gone"]
    assert "deleted" not in triggers
    assert len(triggers) == 10
    assert one(unchanged, "SELECT count(*) FROM triggers WHERE halted_at IS NOT NULL") == 1


def test_it_migrates_once_to_the_current_schema(kept: Database, database: Database) -> None:
    with kept.connect_sync() as connection:
        before = [known for known in status(connection) if known.state != "missing"]
        assert [known.title for known in before][:9] == [known.title for known in status(connection)][:9]
        assert {known.state for known in before} == {"applied"}
        missing = [known.title for known in status(connection) if known.state == "missing"]
        assert migrate(connection) == missing
        assert migrate(connection) == []
    assert columns(kept) == columns(database), "the same columns as a new ledger"


def columns(database: Database) -> list[tuple[Any, ...]]:
    """Of the tables that every ledger has."""
    return asked(
        database,
        "SELECT table_schema, table_name, column_name, data_type, is_nullable, column_default, collation_name "
        "FROM information_schema.columns WHERE table_schema = 'public' AND table_name !~ '^events_[0-9]' OR "
        "table_schema = 'tidelock_tables' AND table_name IN ('counters', 'counter_groups', 'adjustments', 'late_rows', "
        "'error_rows', 'watermarks', 'statements', 'meters$closed', 'meters$distinct') ORDER BY 1, 2, 3",
    )


def test_nothing_of_it_has_changed(unchanged: Database) -> None:
    result = run(unchanged, "verify", "--no-tables", "--anchor", opening.ANCHOR)
    assert result.exit_code == 0, result.output
    head = "SELECT ingress_sequence, commit_id, source_timestamp, encode(digest, 'hex') FROM ledger_head"
    assert [tuple(expected()["head"].values())] == asked(unchanged, head)
    assert expected()["cursors"] == dict(asked(unchanged, "SELECT name, sequence FROM cursors"))


def test_its_definitions_have_the_hashes_they_had(unchanged: Database) -> None:
    definitions = opening.settings(unchanged.url, Path("none")).definitions
    assert unit_hashes(definitions) == expected()["hashes"]
    assert one(unchanged, "SELECT hashes FROM fold_definitions") == expected()["hashes"]


def test_commands_say_what_they_said(unchanged: Database) -> None:
    """Including every change since the first event, read from its segments."""
    for words, then in expected()["commands"].items():
        more = [] if words == "export" else ["--json"]
        now = json_lines(run(unchanged, *words.split(), *more, "--config", opening.HERE / "tidelock.toml"))
        assert (found := difference(then, now)) is None, f"tidelock {words}{found}"


@asynccontextmanager
async def served(database: Database, data: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A server over it, and a client with the key that opens everything."""
    async with (
        open_server(opening.settings(database.url, data), streams_open=True) as server,
        httpx.AsyncClient(base_url=server.url, headers=bearer("everything")) as client,
    ):
        yield client


async def test_the_api_answers_as_it_did_and_its_keys_still_open_what_they_did(
    upgraded: Database, tmp_path: Path
) -> None:
    async with served(upgraded, tmp_path) as client:
        for path, then in expected()["answers"].items():
            if path.startswith("/admin/events"):
                continue  # A running server records ticks.
            answer = await client.get(path)
            assert answer.status_code == 200, (path, answer.text)
            if path.startswith("/v1/explain"):
                # Sentences for people, which are put better now.
                then = {name: value for name, value in then.items() if name not in ("definition", "why")}
            assert (found := difference(then, answer.json())) is None, f"{path}{found}"

        async def seen(label: str) -> httpx.Response:
            return await client.get("/v1/counters", headers=bearer(label))

        assert (await seen("revoked")).status_code == 401
        assert (await seen("acme ingest of api_calls")).status_code == 403
        assert {row["tenant_id"] for row in (await seen("acme read")).json()["items"]} == {"acme"}
        call = {"stream": "api_calls", "quantity": 1}
        assert (await client.post("/v1/events", json=call, headers=bearer("acme read"))).status_code == 403
        verdict = await client.post("/v1/events", json=call, headers=bearer("acme ingest of api_calls"))
        assert verdict.json()["accepted"] == 1
        refused = await client.post("/v1/events", json={"stream": "clicks"}, headers=bearer("acme ingest of api_calls"))
        assert refused.json()["results"][0]["error"]["code"] == "key_not_allowed"
        again = (await client.post("/v1/events", json={"events": expected()["derived"]})).json()
        assert again["duplicates"] == len(expected()["derived"]), "known by the oldest of three salts"


async def test_pending_webhooks_arrive_with_the_ids_they_had_and_dead_ones_can_be_sent_again(
    upgraded: Database, tmp_path: Path
) -> None:
    def ids(state: str) -> list[str]:
        query = "SELECT event_id FROM outbox JOIN triggers ON triggers.id = trigger_id WHERE enabled AND status = "
        return sorted(row[0] for row in asked(upgraded, f"{query}'{state}'"))

    pending, dead = ids("pending"), ids("dead")
    async with receiving() as receiver:
        with upgraded.connect_sync() as connection:
            moved = (expected()["hooks"], receiver.url.removesuffix("/hook"))
            connection.execute("UPDATE triggers SET webhook = replace(webhook, %s, %s)", moved)
            # As if the day had passed that the receiver asked for, whenever this runs.
            connection.execute("UPDATE outbox SET next_attempt_at = now() WHERE next_attempt_at > now()")
        async with served(upgraded, tmp_path) as client:
            await receiver.until(lambda: len(receiver.accepted) >= len(pending))
            assert sorted(receiver.ids()) == pending, "each once, and nothing that was settled"
            answer = await client.post("/v1/triggers/refused/redeliver", json={})
            assert answer.status_code == 200, answer.text
            await receiver.until(lambda: len(receiver.accepted) >= len(pending) + len(dead))
            assert sorted(receiver.ids()[len(pending) :]) == dead
        # It settles what is under way before it ends.
        assert ids("pending") == ids("dead") == []
        for request in receiver.accepted:
            Webhook(expected()["secret"]).verify(request.body, dict(request.headers))
            assert request.payload["event_id"] == request.id
