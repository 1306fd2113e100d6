"""A ledger that has lost its tail: nobody writes it until somebody accepts that, and then no number comes twice."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.commandline import process, run
from tests.losttails import accept, anchored, cut
from tests.recording import record, rows, sequencing
from tests.serving import Start
from tidelock.errors import Difference, SettingsError, Unreachable
from tidelock.ledger import losttail
from tidelock.ledger.anchor import AnchorLine, append_anchor, read_anchors
from tidelock.ledger.losttail import find_lost_tail
from tidelock.ledger.opening import open_ledger, record_control
from tidelock.ledger.verify import verify
from tidelock.model import Accepted
from tidelock.postgres.database import Database
from tidelock.settings import Settings

CONFIG = """
[windows.w]
stream = "s"
window = { tumbling = "1m" }
eventtime = { enabled = true }
select = { n = "count(*)" }
[streams.s]
eventtime = { column = "occurred_at" }
"""


@pytest.fixture
async def settings(database: Database, tmp_path: Path) -> Settings:
    """Of a ledger of four commits and twelve events. The anchor has commits 2 to 4; commits 3 and 4 are gone."""
    found = Settings(data=tmp_path, database_url=database.url, anchor=tmp_path / "elsewhere" / "anchor.jsonl")
    async with sequencing(database) as sequencer:
        for number in range(4):
            await record(sequencer, *({"idempotencyKey": f"{number}/{n}"} for n in range(3)))
            if number:
                await anchored(database, found.anchor_path)
    await asyncio.to_thread(cut, database, 6)
    return found


async def checked(settings: Settings, database: Database) -> dict[str, str]:
    """What `verify` says of a ledger that is right."""
    found = await asyncio.to_thread(verify, database, settings.anchor_path, lambda done, total: None)
    assert found.first is None
    return {check.name: check.detail for check in found.report.checks}


def test_every_command_that_writes_refuses_and_names_what_is_missing_and_what_to_do(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    config, file = tmp_path / "tidelock.toml", tmp_path / "events.jsonl"
    config.write_text(CONFIG)
    file.write_text('{"stream":"s"}\n')
    env = {"TIDELOCK_ANCHOR": str(settings.anchor_path), "TIDELOCK_DATA": str(tmp_path), "TIDELOCK_PORT": "0"}
    for command in (["up"], ["serve"], ["import", file], ["drain"], ["fold", "--once"], ["replay"]):
        result = run(database, *command, "--config", config, env=env)
        said = " ".join(result.output.split())
        assert result.exit_code == 1, (command, said)
        for words in ("sequences 7 to 12 are missing", "Restore a Postgres backup", "--accept-lost-tail"):
            assert words in said, (command, said)
    with pytest.raises(Difference, match="sequences 7 to 12 are missing"):
        record_control(settings, database, {"type": "tick"})
    assert asyncio.run(rows(database, "SELECT max(ingress_sequence) FROM events")) == [(6,)]


def test_a_server_that_is_told_to_accept_the_loss_serves(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    (tmp_path / "tidelock.toml").write_text(f'anchor = "{settings.anchor_path}"')
    server = process(
        "serve", "--accept-lost-tail", "--json", "--port", "0", "--data", tmp_path, "--database-url", database.url,
        cwd=tmp_path,
    )  # fmt: skip
    assert server.stdout is not None
    told = [json.loads(line)["event"] for line in (server.stdout.readline(), server.stdout.readline())]
    server.terminate()
    _, said = server.communicate(timeout=60)
    assert (told, server.returncode) == (["starting", "ready"], 0), said
    assert "sequences 7 to 12 are lost; recorded as sequence" in said
    assert asyncio.run(find_lost_tail(database, settings.anchor_path)) is None


@pytest.mark.parametrize("remote", [False, True], ids=["own numbers", "a sequence database"])
async def test_an_accepted_loss_is_recorded_and_nothing_is_issued_twice(
    settings: Settings, database: Database, empty_database: Database, remote: bool
) -> None:
    if remote:
        settings = replace(settings, event_sequence_database_url=empty_database.url)
    last = read_anchors(settings.anchor_path)[-1]
    recorded = await accept(settings)
    event, commit, time = (await rows(database, "SELECT data, commit_id, source_timestamp FROM events "
                                      f"WHERE ingress_sequence = {recorded}"))[0]  # fmt: skip
    assert event == {
        "type": "accepted_loss", "firstSequence": 7, "lastSequence": 12, "firstCommit": 3, "lastCommit": 4,
        "digest": last.digest, "anchoredAt": last.at,
    }  # fmt: skip
    # More may have been acknowledged after the last line of the anchor.
    assert recorded > 12 + 100_000
    assert commit > 4 + 100_000
    assert time > int(last.source_timestamp or 0) + 100_000
    # The next start needs no flag, and goes on behind it.
    async with open_ledger(settings, streams_open=True) as ledger:
        again, new = await record(ledger.sequencer, {"idempotencyKey": "1/0"}, {"idempotencyKey": "3/0"})
        assert type(again).__name__ == "Duplicate"
        assert isinstance(new, Accepted), "what was lost can be sent again"
        assert new.ingress_sequence > recorded
    await anchored(database, settings.anchor_path)
    said = await checked(settings, database)
    assert f"sequences 7 to 12 are lost, as accepted at sequence {recorded:,}" in said["density"]
    assert "2 of them belong to commits whose loss was accepted" in said["anchor"]


async def test_a_ledger_that_lost_everything_continues_above_it_too(settings: Settings, database: Database) -> None:
    await asyncio.to_thread(cut, database, 0)
    with pytest.raises(Difference, match="sequences 1 to 12 are missing"):
        await accept_without_flag(settings)
    await accept(settings)
    assert "sequences 1 to 12 are lost" in (await checked(settings, database))["density"]


async def test_a_second_loss_is_refused_again_and_accepted_again(settings: Settings, database: Database) -> None:
    first = await accept(settings)
    async with open_ledger(settings, streams_open=True) as ledger:
        await record(ledger.sequencer, {}, {})
    await anchored(database, settings.anchor_path)
    await asyncio.to_thread(cut, database, first)
    with pytest.raises(Difference, match=f"sequences {first + 1} to {first + 2} are missing"):
        await accept_without_flag(settings)
    second = await accept(settings)
    assert (await checked(settings, database))["density"].count("are lost") == 2
    # One that takes the first acceptance with it is a longer one.
    await anchored(database, settings.anchor_path)
    await asyncio.to_thread(cut, database, 6)
    assert await accept(settings) > second
    assert f"sequences 7 to {second:,} are lost" in (await checked(settings, database))["density"]


async def accept_without_flag(settings: Settings) -> None:
    async with open_ledger(settings, streams_open=True):
        pass


async def test_readers_that_are_beyond_the_end_miss_nothing_that_comes(settings: Settings, database: Database) -> None:
    async with await database.connect() as connection:
        await connection.execute("INSERT INTO cursors (name, sequence) VALUES ('fold', 12), ('kafka', 5000000)")
    recorded = await accept(settings)
    assert recorded > 5_000_000
    (found,) = await rows(database, f"SELECT data ->> 'lastSequence' FROM events WHERE ingress_sequence = {recorded}")
    assert found == ("5000000",)


async def test_a_gap_that_no_event_accepts_stays_a_difference(settings: Settings, database: Database) -> None:
    recorded = await accept(settings)
    async with await database.connect() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            f"""UPDATE events SET data = '{{"type":"tick"}}' WHERE ingress_sequence = {recorded}""".encode()
        )
    found = await asyncio.to_thread(verify, database, settings.anchor_path, lambda done, total: None)
    assert found.first is not None
    assert {check.name for check in found.report.checks if not check.ok} >= {"chain", "density", "content", "anchor"}


async def test_what_others_write_meanwhile_is_not_a_lost_tail(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "anchor.jsonl"
    async with sequencing(database) as sequencer:
        loop = asyncio.get_running_loop()

        def written_first(found: Path) -> list[AnchorLine]:
            """The file has a commit that was not there a moment ago."""

            async def write() -> None:
                await record(sequencer, {})
                await anchored(database, path)

            asyncio.run_coroutine_threadsafe(write(), loop).result(30)
            return read_anchors(found)

        monkeypatch.setattr(losttail, "read_anchors", written_first)
        for _ in range(3):
            assert await find_lost_tail(database, path) is None


async def test_an_anchor_of_another_ledger_proves_nothing(
    settings: Settings, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other.jsonl"
    append_anchor(other, AnchorLine(1, 3, "ab" * 32, "2026-01-01T00:00:00Z"))
    append_anchor(other, AnchorLine(9, 30, "ab" * 32, "2026-01-01T00:00:00Z"))
    with caplog.at_level(logging.WARNING):
        for path in (other, tmp_path / "absent.jsonl"):
            assert await find_lost_tail(database, path) is None
    assert "no line of" in caplog.text
    assert "belongs to another ledger" in caplog.text


async def test_one_line_of_this_ledger_is_enough_whatever_another_says(
    settings: Settings, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A line that was changed, or a commit that was: neither may hide that the tail is gone."""
    lines = settings.anchor_path.read_text()
    settings.anchor_path.unlink()
    append_anchor(settings.anchor_path, AnchorLine(1, 3, "ab" * 32, "2026-01-01T00:00:00Z"))
    with settings.anchor_path.open("a") as file:
        file.write(lines)
    with pytest.raises(Difference, match="sequences 7 to 12 are missing"):
        await accept_without_flag(settings)
    assert "commit 1 differs from the ledger" in caplog.text


async def test_an_anchor_that_cannot_be_read_is_an_error_that_names_it(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    (tmp_path / "broken.jsonl").write_text("{}\n")
    (tmp_path / "directory").mkdir()
    for name, why in (("broken.jsonl", "line 1 of"), ("directory", "Is a directory")):
        with pytest.raises(SettingsError, match=f"{tmp_path / name} cannot be read(?s:.)*{why}") as told:
            await accept_without_flag(replace(settings, anchor=tmp_path / name))
        assert told.value.field == "anchor"


async def test_a_line_of_an_older_version_has_no_source_timestamp_and_proves_as_much(
    settings: Settings, database: Database
) -> None:
    lines = [json.loads(line) for line in settings.anchor_path.read_text().splitlines()]
    old: list[dict[str, Any]] = [
        {name: value for name, value in line.items() if name != "sourceTimestamp"} for line in lines
    ]
    settings.anchor_path.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert await accept(settings) > 12
    await checked(settings, database)


async def test_a_server_that_runs_is_not_ready_when_the_tail_is_gone_and_says_why(start: Start) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        for _ in range(3):
            await client.post("/v1/events", json={"stream": "s"})
        assert (await client.get("/readyz")).status_code == 200
        await asyncio.to_thread(cut, server.ledger.database, 1)
        # Also while nobody writes.
        for _ in range(2):
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            (why,) = answer.json()["waitingFor"]
            assert "the ledger ends at commit 1, but had commit 3: its tail is gone" in why
            assert (await client.post("/v1/events", json={"stream": "s"})).status_code == 503


async def test_a_process_that_runs_records_nothing_more_when_the_tail_is_gone(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, {}, {})
        await record(sequencer, {})
        await asyncio.to_thread(cut, database, 2)
        for _ in range(2):
            with pytest.raises(Unreachable, match="its tail is gone"):
                await record(sequencer, {})
    assert caplog.text.count("Recording has stopped") == 1
    assert await rows(database, "SELECT max(ingress_sequence) FROM events") == [(2,)]
