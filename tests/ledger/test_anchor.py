"""The anchor file: the head outside the database, written only when it moved, never in the way of ingest."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from tests.budgets import HANG_S
from tests.recording import record, sequencing
from tidelock.instants import SECOND, format_instant
from tidelock.ledger.anchor import (
    Anchor,
    AnchorLine,
    BadAnchor,
    append_anchor,
    encode_anchor,
    read_anchors,
    shorten_anchors,
)
from tidelock.postgres.database import Database

DAY = 86_400 * SECOND


def line(commit_id: int, at: int = 0) -> AnchorLine:
    return AnchorLine(commit_id, commit_id * 10, "ab" * 32, format_instant(at))


async def test_a_line_is_the_head_in_json(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "made" / "anchor.jsonl"
    anchor = Anchor(database, path, SECOND)
    async with sequencing(database) as sequencer:
        await record(sequencer, {}, {})
        await anchor.write()
        head = sequencer.head
    assert head is not None
    found = json.loads(path.read_text())
    assert found.pop("at").endswith("Z")
    assert found == {
        "commitId": 1, "ingressSequence": 2, "digest": head.digest.hex(), "sourceTimestamp": str(head.source_timestamp),
    }  # fmt: skip
    await anchor.close()


async def test_nothing_is_written_for_an_empty_ledger_or_while_the_head_does_not_move(
    database: Database, tmp_path: Path
) -> None:
    path = tmp_path / "anchor.jsonl"
    anchor = Anchor(database, path, SECOND)
    await anchor.write()
    assert not path.exists()
    async with sequencing(database) as sequencer:
        for _ in range(2):
            await record(sequencer, {})
            await anchor.write()
            await anchor.write()
    await anchor.close()
    await Anchor(database, path, SECOND).close()
    assert [found.commit_id for found in read_anchors(path)] == [1, 2]


async def test_it_runs_by_itself_and_writes_once_more_when_it_is_closed(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "anchor.jsonl"
    anchor = Anchor(database, path, SECOND // 100)
    running = asyncio.create_task(anchor.run())
    async with sequencing(database) as sequencer:
        await record(sequencer, {})
        async with asyncio.timeout(HANG_S):
            while not path.exists():  # noqa: ASYNC110 - a file has no event to wait for
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await record(sequencer, {})
    await anchor.close()
    assert [found.commit_id for found in read_anchors(path)] == [1, 2]


async def test_a_commit_of_another_process_is_anchored_too(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "anchor.jsonl"
    anchor = Anchor(database, path, SECOND)
    async with sequencing(database) as one, sequencing(database) as other:
        await record(one, {})
        await record(other, {})
        await anchor.close()
    assert [found.ingress_sequence for found in read_anchors(path)] == [2]


async def test_a_file_that_cannot_be_written_is_reported_once_and_stops_nothing(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file" / "anchor.jsonl"
    path.parent.write_text("not a directory")
    anchor = Anchor(database, path, SECOND)
    async with sequencing(database) as sequencer:
        await record(sequencer, {})
        with caplog.at_level(logging.WARNING):
            await anchor.write()
            await anchor.write()
        assert len([message for message in caplog.messages if "cannot write the anchor file" in message]) == 1
        path.parent.unlink()
        await anchor.close()
    assert len(read_anchors(path)) == 1


async def test_a_dropped_connection_is_made_again_without_a_word(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    anchor = Anchor(database, tmp_path / "anchor.jsonl", SECOND)
    async with sequencing(database) as sequencer:
        await record(sequencer, {})
        await anchor.write()
        async with await database.connect() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidelock anchor'"
            )
        await record(sequencer, {})
        await anchor.write()
    await anchor.close()
    assert "cannot be read" not in caplog.text
    assert len(read_anchors(tmp_path / "anchor.jsonl")) == 2


async def test_a_ledger_that_ends_before_the_last_anchor_is_reported_at_startup(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append_anchor(tmp_path / "anchor.jsonl", line(120))
    await Anchor(database, tmp_path / "anchor.jsonl", SECOND).close()
    assert "has commit 120, but the ledger ends at commit 0" in caplog.text


def test_a_line_cut_off_by_a_crash_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "anchor.jsonl"
    append_anchor(path, line(1))
    with path.open("ab") as file:
        file.write(b'{"commitId":2,"ingr')
    assert read_anchors(path) == [line(1)]
    append_anchor(path, line(3))
    assert read_anchors(path) == [line(1), line(3)]


def test_a_line_in_the_middle_that_says_nothing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "anchor.jsonl"
    path.write_text('{"commitId":1}\n')
    with pytest.raises(BadAnchor, match="line 1"):
        read_anchors(path)


def test_a_long_file_keeps_its_latest_lines_and_the_first_of_every_day(tmp_path: Path) -> None:
    path = tmp_path / "anchor.jsonl"
    lines = [line(number, number * DAY // 1000) for number in range(5000)]
    path.write_bytes(b"".join(encode_anchor(each) for each in lines))
    assert shorten_anchors(path) == 4 + 1000
    assert [found.commit_id for found in read_anchors(path)] == [0, 1000, 2000, 3000, *range(4000, 5000)]


async def test_the_file_is_shortened_when_it_has_grown(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.ledger.anchor.LINES_MAX", 5)
    monkeypatch.setattr("tidelock.ledger.anchor._LINES_KEPT", 2)
    anchor = Anchor(database, tmp_path / "anchor.jsonl", SECOND)
    async with sequencing(database) as sequencer:
        for _ in range(8):
            await record(sequencer, {})
            await anchor.write()
    await anchor.close()
    assert len(read_anchors(tmp_path / "anchor.jsonl")) <= 5
    assert read_anchors(tmp_path / "anchor.jsonl")[-1].commit_id == 8
