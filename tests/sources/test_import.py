"""`tidelock import`: every format, every row judged by itself, once, in order, through stops and kills."""

import gzip
import json
import os
import signal
import time
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.cli.commandline import events, process, recorded, run
from tidelock.postgres.database import Database

DAY = "2026-01-01T00:00:00Z"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the test's own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(database: Database, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = run(database, "import", *arguments, "--json")
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def counts(found: dict[str, Any]) -> tuple[int, ...]:
    return tuple(found[name] for name in ("accepted", "duplicates", "conflicts", "rejected"))


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl_is_taken_as_a_request_would_carry_it_and_a_second_time_is_all_duplicates(
    database: Database, folder: Path
) -> None:
    file = jsonl(folder / "a.jsonl", {"metric": "calls", "occurredAt": DAY, "meta": {"b": 1, "a": 2}}, {"stream": "s"})
    assert counts(report(database, file)) == (2, 0, 0, 0)
    assert counts(report(database, file)) == (0, 2, 0, 0)
    found = events(database, "stream, data::text, key_source::text, idempotency_key LIKE 'import:%:2'")
    assert found == [("calls", '{"b": 1, "a": 2}', "d", False), ("s", None, "c", True)]


def test_a_bad_row_is_rejected_by_number_and_does_not_harm_its_neighbours(database: Database, folder: Path) -> None:
    file = folder / "a.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"stream":"s","customerRef":"1"}\r\n\nnot json\n{"stream":"s","bogus":1}\n'
        b'{"stream":"s","data":"\xff"}\n{"stream":"s","data":"\\u0000"}\n{"stream":"s","customerRef":"\\ud800"}\n'
        b'{"stream":"s","customerRef":"2"}'
    )
    found = report(database, file, "--rejects", "out.jsonl", exit_code=1)
    assert counts(found) == (2, 0, 0, 5)
    problems = [
        (problem["row"], problem["error"]["code"], problem["error"].get("field")) for problem in found["problems"]
    ]
    assert problems == [
        (3, "invalid_json", None), (4, "invalid_event", "bogus"), (5, "invalid_json", None),
        (6, "invalid_event", "data"), (7, "invalid_event", "customerRef"),
    ]  # fmt: skip
    written = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [each["row"] for each in written] == [3, 4, 5, 6, 7]
    assert written[0]["event"] == "not json"
    assert written[1]["event"] == {"stream": "s", "bogus": 1}
    assert events(database) == [("1",), ("2",)]


def test_a_file_can_correct_what_is_recorded_and_what_it_has_itself(database: Database, folder: Path) -> None:
    report(database, jsonl(folder / "a.jsonl", {"stream": "s", "idempotencyKey": "a", "data": 1, "ts": DAY}))
    rows: list[dict[str, Any]] = [
        {"stream": "s", "op": "void", "target": "b"},
        {"stream": "s", "op": "amend", "target": "a", "quantity": 2},
        {"stream": "s", "op": "void", "target": "a"},
        {"stream": "s", "op": "void", "target": "never"},
        {"stream": "s", "idempotencyKey": "b", "ts": DAY},
    ]
    others = [{"stream": "s", "idempotencyKey": f"other{n}"} for n in range(100)]
    file = jsonl(folder / "b.jsonl", *rows[:2], *others, *rows[2:])
    for chunk in ("1", "1000"):
        tried = report(database, file, "--dry-run", "--import-chunk-events", chunk, exit_code=1)
        assert (tried["accepted"], tried["rejected"]) == (103, {"invalid_target": 1, "unknown_target": 1})
    assert counts(report(database, file, exit_code=1)) == (103, 0, 0, 2)
    assert events(database, "op, target_sequence, data::text")[1:4] == [
        ("upsert", None, None),
        ("void", 2, None),
        ("amend", 1, "1"),
    ]


def test_people_are_told_the_first_problems_with_their_rows(database: Database, folder: Path) -> None:
    file = jsonl(folder / "a.jsonl", *({"stream": "s", "quantity": "x"} for _ in range(12)), {"stream": "s"})
    result = run(database, "import", file)
    assert result.exit_code == 1
    assert "1 accepted, 0 duplicates, 0 conflicts, 12 rejected" in result.stdout
    assert "row 10  invalid_quantity  'x' is not a decimal number" in result.stdout
    assert "and 2 more; use --rejects FILE to write all of them to a file" in result.stdout


def test_a_conflict_is_named_with_the_original(database: Database, folder: Path) -> None:
    rows = [{"stream": "s", "idempotencyKey": "k", "quantity": amount} for amount in (1, 2)]
    found = report(database, jsonl(folder / "a.jsonl", *rows), exit_code=1)
    assert counts(found) == (1, 0, 1, 0)
    assert found["problems"] == [
        {"row": 2, "status": "conflict", "ingressSequence": 1, "idempotencyKey": "k", "keySource": "client",
         "event": rows[1]},
    ]  # fmt: skip


def test_csv_columns_named_like_fields_are_fields_and_the_others_are_members_of_data(
    database: Database, folder: Path
) -> None:
    (folder / "a.csv").write_text(
        "customer_ref,occurredAt,quantity,region,note\n"
        f'cus_1,{DAY},1.50,eu,"a ""quoted"", text\nin two lines"\n'
        'cus_2,1767225600000,,,""\n\n"",,-1e3,ü,x\n'
    )
    assert counts(report(database, "a.csv", "--stream", "calls", "--tenant", "acme")) == (3, 0, 0, 0)
    found = events(database, "tenant_id, stream, customer_ref, occurred_at / 1000000000, quantity::text, data::text")
    assert found[:2] == [
        ("acme", "calls", "cus_1", 1767225600, "1.5", '{"region":"eu","note":"a \\"quoted\\", text\\nin two lines"}'),
        ("acme", "calls", "cus_2", 1767225600, None, '{"note":""}'),
    ]
    assert found[2][2] == ""
    assert found[2][4:] == ("-1000", '{"region":"ü","note":"x"}')


def test_columns_can_be_mapped_to_fields_to_members_of_data_and_to_nowhere(database: Database, folder: Path) -> None:
    (folder / "a.csv").write_text(f"who;when;what;stream\nc;{DAY};1;ours\n")
    maps = ["who=customerRef", "when=ts", "what=data.amount", "stream=-"]
    assert counts(report(database, "a.csv", "--stream", "s", *(word for m in maps for word in ("--map", m)))) == (
        1,
        0,
        0,
        0,
    )
    assert events(database, "stream, customer_ref, data::text") == [("s", "c", '{"amount":"1"}')]


def test_jsonl_members_can_be_mapped_too(database: Database, folder: Path) -> None:
    file = jsonl(folder / "a.jsonl", {"kind": "s", "who": "c", "noise": 1})
    assert counts(report(database, file, "--map", "kind=stream", "--map", "who=customer_ref", "--map", "noise=-")) == (
        1,
        0,
        0,
        0,
    )
    assert events(database, "stream, customer_ref") == [("s", "c")]


def test_a_data_column_is_json_and_takes_the_other_columns_in(database: Database, folder: Path) -> None:
    (folder / "a.csv").write_text('stream,data,extra\ns,"{""a"": 1.0}",x\ns,not json,\ns,[1],x\ns,[1],\n')
    found = report(database, "a.csv", exit_code=1)
    assert [(each["row"], each["error"]["field"]) for each in found["problems"]] == [(2, "data"), (3, "data")]
    assert events(database, "data::text") == [('{"a":1.0,"extra":"x"}',), ("[1]",)]


def test_parquet_values_keep_their_types_exactly(database: Database, folder: Path) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)  # noqa: UP017 - Arrow wants a zone it knows
    table = pa.table(
        {
            "stream": ["s", "s"],
            "customer_ref": pa.array([7, None], pa.int64()),
            "ts": pa.array([1_767_225_600_123_456_789, 1_767_225_600_000_000_001], pa.timestamp("ns")),
            "quantity": pa.array([Decimal("1.500000001"), None], pa.decimal128(20, 9)),
            "i": pa.array([2**62, None], pa.int64()),
            "f": [0.1, float("nan")],
            "d": pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2)),
            "at": pa.array([at, None], pa.timestamp("us", tz="UTC")),
            "day": [date(2026, 1, 31), None],
            "flag": [True, None],
            "raw": [b"\x00\xff", None],
            "nested": [{"a": [1, 2], "t": at}, None],
            "kind": pa.array(["x", "y"]).dictionary_encode(),
        }
    )
    pq.write_table(table, folder / "a.parquet")
    assert counts(report(database, "a.parquet", "--as-is")) == (2, 0, 0, 0)
    found = events(database, "customer_ref, occurred_at, quantity::text, data::text")
    assert found[0][:3] == ("7", 1_767_225_600_123_456_789, "1.500000001")
    assert found[0][3] == (
        '{"i":4611686018427387904,"f":0.1,"d":12345678901234567890.12,"at":"2026-01-01T12:00:00Z","day":"2026-01-31",'
        '"flag":true,"raw":"AP8=","nested":{"a":[1,2],"t":"2026-01-01T12:00:00Z"},"kind":"x"}'
    )
    assert found[1] == (None, 1_767_225_600_000_000_001, None, '{"f":null,"kind":"y"}')


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_compressed_files_are_read(database: Database, folder: Path, ending: str) -> None:
    text = b'{"stream":"s","customerRef":"c"}\n' * 3
    packed = gzip.compress(text) if ending == "gz" else zstandard.compress(text)
    (folder / f"a.ndjson.{ending}").write_bytes(packed)
    assert counts(report(database, f"a.ndjson.{ending}")) == (3, 0, 0, 0)


def test_a_chunk_is_one_collection_and_rows_keep_their_order(database: Database, folder: Path) -> None:
    jsonl(folder / "a.jsonl", *({"stream": "s", "customerRef": str(n)} for n in range(950)))
    assert counts(report(database, "a.jsonl", "--import-chunk-events", "100")) == (950, 0, 0, 0)
    assert events(database) == [(str(n),) for n in range(950)]
    with database.connect_sync() as connection:
        found = connection.execute(b"SELECT count(*) FROM events GROUP BY source_timestamp ORDER BY 1").fetchall()
    assert found == [(50,)] + [(100,)] * 9


@pytest.mark.parametrize(
    ("name", "content", "arguments", "said"),
    [
        ("gone.csv", None, [], "gone.csv cannot be read: No such file"),
        (".", None, ["--format", "csv"], ". is not a regular file"),
        ("a.parquet", b"PAR1 but not really", [], "a.parquet is not a Parquet file"),
        ("a.parquet", b"", [], "a.parquet is not a Parquet file"),
        ("a.csv", b"", [], "a.csv is empty"),
        ("a.csv", b"stream\ns\n\xff\xfe\n", [], "a.csv line 3 is not UTF-8"),
        ("a.csv", b'stream\ns\n"open\n', [], "a.csv row 2 (line 3): unexpected end of data"),
        ("a.csv", b'stream\n"s"x\n', [], "a.csv row 1 (line 2):"),
        ("a.csv", b"stream,stream\ns,s\n", [], "two columns for the field 'stream'"),
        ("a.csv", b"customer\nc\n", [], "no column of a.csv names the stream"),
        ("a.csv", b"stream\ns\n", ["--map", "stream=steam"], "there is no field 'steam', did you mean stream?"),
        ("a.csv", b"stream\ns\n", ["--map", "nothing=ts"], "a.csv has no column 'nothing'; it has 'stream'"),
        ("a.csv", b"stream\ns\n", ["--map", "stream"], "--map 'stream' is not of the form column=field"),
        ("a.txt", b"stream\ns\n", [], "the file extension does not show the format"),
        ("a.csv", b"stream\ns\n", ["--format", "xml"], "--format 'xml' is not a known format"),
        ("a.jsonl.gz", b"not gzip", [], "a.jsonl.gz cannot be decompressed"),
        ("a.jsonl.zst", b"not zstd", [], "a.jsonl.zst cannot be decompressed"),
        ("a.jsonl.gz", gzip.compress(b"{}\n" * 9999, mtime=0)[:-30], [], "a.jsonl.gz cannot be decompressed"),
        ("a.csv", b"stream\ns\n", ["--rejects", "no/such/place"], "no/such/place cannot be written"),
        ("a.csv", b"stream\ns\n", ["--import-chunk-events", "1001"], "from 1 to 1000"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_said_in_words(
    database: Database, folder: Path, name: str, content: bytes | None, arguments: list[str], said: str
) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    result = run(database, "import", name, *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.startswith("Error: ")


def test_a_mistyped_name_makes_no_ledger(folder: Path) -> None:
    assert run(None, "import", "gone.csv").exit_code == 2
    assert list(folder.iterdir()) == []


def test_a_file_that_cannot_be_read_to_its_end_records_nothing_but_as_it_is_the_rows_before(
    database: Database, folder: Path
) -> None:
    good = b"stream,customerRef\n" + b"".join(b"s,%d\n" % n for n in range(250))
    (folder / "a.csv").write_bytes(good + b"s,\xff\n")
    assert run(database, "import", "a.csv", "--import-chunk-events", "100").exit_code == 2
    assert events(database) == []
    assert run(database, "import", "a.csv", "--import-chunk-events", "100", "--as-is").exit_code == 2
    assert len(events(database)) == 250


def test_a_row_with_too_many_fields_is_rejected_alone(database: Database, folder: Path) -> None:
    (folder / "a.csv").write_text("stream,customerRef\ns,1\ns,2,3\ns\ns,4\n")
    found = report(database, "a.csv", exit_code=1)
    assert [each["row"] for each in found["problems"]] == [2, 3]
    assert events(database) == [("1",), ("4",)]


def test_only_the_row_that_the_database_refuses_fails(database: Database, folder: Path) -> None:
    with database.connect_sync() as connection:
        connection.execute(b"ALTER TABLE events ADD CHECK (customer_ref <> '7')")
    jsonl(folder / "a.jsonl", *({"stream": "s", "customerRef": str(n)} for n in range(30)))
    found = report(database, "a.jsonl", "--import-chunk-events", "5", exit_code=1)
    assert counts(found) == (29, 0, 0, 1)
    assert found["problems"][0]["row"] == 8
    assert events(database) == [(str(n),) for n in range(30) if n != 7]


def test_a_file_meant_to_be_another_stream_is_another_import(database: Database, folder: Path) -> None:
    (folder / "a.csv").write_text(f"ts\n{DAY}\n")
    assert counts(report(database, "a.csv", "--stream", "a")) == (1, 0, 0, 0)
    assert counts(report(database, "a.csv", "--stream", "b")) == (1, 0, 0, 0)


def test_an_undeclared_stream_is_refused_when_the_settings_say_so(database: Database, folder: Path) -> None:
    (folder / "tidelock.toml").write_text("streams_open = false\n[streams.known]\n")
    found = report(database, jsonl(folder / "a.jsonl", {"stream": "known"}, {"stream": "other"}), exit_code=1)
    assert found["problems"][0]["error"]["code"] == "unknown_stream"


ROWS = 20_000


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_import_that_was_stopped_or_killed_continues_where_it_was(
    database: Database, folder: Path, ending: signal.Signals
) -> None:
    with (folder / "a.csv").open("w") as file:
        file.write("stream,customerRef\n")
        file.writelines(f"s,{n}\n" for n in range(ROWS))
    arguments = ["import", "a.csv", "--import-chunk-events", "50", "--database-url", database.url]
    running = process(*arguments, cwd=folder)
    deadline = time.monotonic() + 60
    while recorded(database) < 1000 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(running.pid, ending)
    _, said = running.communicate(timeout=60)
    assert running.returncode == (-ending if ending == signal.SIGKILL else 128 + ending), said
    done = recorded(database)
    assert 1000 <= done < ROWS
    found = report(database, "a.csv", "--import-chunk-events", "500")
    assert found["resumedAfter"] > 0
    # A chunk may have been recorded without its position: it is found again, not recorded again.
    assert found["accepted"] == ROWS - done
    assert found["duplicates"] == done - found["resumedAfter"]
    if ending != signal.SIGKILL:
        assert "Run the command again to continue" in said
        assert found["duplicates"] == 0
    assert events(database) == [(str(n),) for n in range(ROWS)]
    assert run(database, "verify").exit_code == 0


def test_an_import_outlives_a_database_that_drops_its_connections(database: Database, folder: Path) -> None:
    with (folder / "a.csv").open("w") as file:
        file.write("stream,customerRef\n")
        file.writelines(f"s,{n}\n" for n in range(ROWS))
    running = process("import", "a.csv", "--json", "--database-url", database.url, cwd=folder)
    dropped = 0
    while running.poll() is None and dropped < 3:
        with database.connect_sync() as connection:
            found = connection.execute(
                b"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
                b"AND application_name IN ('tidelock import', 'tidelock sequencer')"
            ).fetchone()
        dropped += bool(found and found[0])
        # It goes on first: three drops at its beginning would be like one.
        before = recorded(database)
        while running.poll() is None and recorded(database) == before:
            time.sleep(0.01)
    said, problems = running.communicate(timeout=60)
    assert (running.returncode, problems) == (0, "")
    assert json.loads(said)["finished"]
    assert dropped
    assert events(database) == [(str(n),) for n in range(ROWS)]
    assert run(database, "verify").exit_code == 0


def test_restart_begins_at_the_first_row_again(database: Database, folder: Path) -> None:
    jsonl(folder / "a.jsonl", *({"stream": "s", "customerRef": str(n)} for n in range(10)))
    report(database, "a.jsonl")
    with database.connect_sync() as connection:
        connection.execute(b"UPDATE imports SET rows_done = 4, finished = false")
    assert counts(report(database, "a.jsonl", "--restart")) == (0, 10, 0, 0)
    with database.connect_sync() as connection:
        connection.execute(b"UPDATE imports SET rows_done = 4, finished = false")
    assert counts(report(database, "a.jsonl")) == (0, 6, 0, 0)
