"""Files of events: what is written comes back, whatever texts and data it has; columns find their fields."""

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelock.errors import SettingsError
from tidelock.model import Recorded, Rejected
from tidelock.sources.fields import ColumnMap, FieldTarget, event_text
from tidelock.sources.files.exporting import event_writer
from tidelock.sources.files.rows import format_of, open_rows

pytestmark = pytest.mark.check

NOWHERE = Path("a.csv")

texts = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
events = st.builds(
    lambda customer, resource, source, content: Recorded(
        7, 3, "1794783604150649000", "2026-11-15T23:00:04.150649Z", "2026-01-01T00:00:00.000000001Z", "acme", "calls",
        customer, resource, "-1.5", msgspec.Raw(msgspec.json.encode(content)), "upsert", None, None, None, "k",
        "client", source, "t", 3, None, source,
    ),
    texts, texts, texts, data,
)  # fmt: skip


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(events, min_size=1, max_size=3))
def test_what_is_written_is_read_back(tmp_path: Path, name: str, written: list[Recorded]) -> None:
    file = io.BytesIO()
    writer = event_writer(name, file)
    writer.write(written)
    writer.finish()
    path = tmp_path / f"a.{name}"
    path.write_bytes(file.getvalue())
    rows = open_rows(path, name, ColumnMap([]))
    try:
        found = [msgspec.json.decode(row.text) for row in rows.rows(0) if isinstance(row.text, bytes)]
    finally:
        rows.close()
    assert [row.number for row in rows_of(path, name)] == list(range(1, len(written) + 1))
    for event, back in zip(written, found, strict=True):
        sent = {
            key: value for key, value in msgspec.json.decode(msgspec.json.encode(event)).items() if value is not None
        }
        read = {key: value for key, value in back.items() if value is not None}
        # Numbers are text in CSV, and exact decimals in Parquet.
        for field in ("ingressSequence", "commitId", "sourceTimestamp", "quantity", "targetSequence"):
            assert Decimal(str(read.pop(field))) == Decimal(str(sent.pop(field)))
        assert read == sent


def rows_of(path: Path, name: str) -> list[Any]:
    rows = open_rows(path, name, ColumnMap([]))
    try:
        return list(rows.rows(0))
    finally:
        rows.close()


@given(after=st.integers(0, 12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_reading_continues_after_any_row(tmp_path: Path, name: str, after: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / f"a.{name}"
    if name == "parquet":
        pq.write_table(pa.table({"stream": [str(n) for n in range(10)]}), path, row_group_size=3)
    elif name == "csv":
        path.write_text("stream\n" + "".join(f"{n}\n" for n in range(10)))
    else:
        path.write_text("".join(f'{{"stream":"{n}"}}\n' for n in range(10)))
    rows = open_rows(path, name, ColumnMap([]))
    try:
        found = [(row.number, msgspec.json.decode(row.text)["stream"]) for row in rows.rows(after)]  # type: ignore[arg-type]
    finally:
        rows.close()
    assert found == [(n + 1, str(n)) for n in range(after, 10)]


def test_columns_are_fields_in_either_spelling_and_else_members_of_data() -> None:
    found = ColumnMap(["when=ts", "x=data.y", "z=-"]).targets(
        ["customer_ref", "tenantId", "when", "x", "z", "w"], NOWHERE
    )
    fields = [FieldTarget(name, is_member=False) for name in ("customerRef", "tenantId", "ts")]
    assert found == [*fields, FieldTarget("y", is_member=True), None, FieldTarget("w", is_member=True)]


def test_the_extra_columns_of_an_export_are_ones_own_unless_all_are_there() -> None:
    assert ColumnMap([]).targets(["receivedAt"], NOWHERE) == [FieldTarget("receivedAt", True)]
    every = ["ingressSequence", "commitId", "source_timestamp", "receivedAt", "key_source"]
    assert all(target and not target.is_member for target in ColumnMap([]).targets(every, NOWHERE))


@pytest.mark.parametrize("pairs", [["a"], ["=ts"], ["a="], ["a=ts", "a=stream"], ["a=ingressSequence"], ["a=data."]])
def test_a_mapping_that_says_nothing_is_refused(pairs: list[str]) -> None:
    with pytest.raises(SettingsError, match="--map"):
        ColumnMap(pairs)


def test_json_text_in_a_data_column_cannot_reach_beyond_it() -> None:
    found = event_text(['1, "tenantId": "other"'], [FieldTarget("data", False)])
    assert isinstance(found, Rejected)
    assert found.error.code == "invalid_json"


@pytest.mark.parametrize(
    ("name", "found"),
    [("a.csv", "csv"), ("a.TSV", "csv"), ("a.jsonl.gz", "jsonl"), ("x.y.ndjson.zst", "jsonl"), ("a.pq", "parquet")],
)
def test_the_ending_tells_the_format(name: str, found: str) -> None:
    assert format_of(Path(name), None) == found
    assert format_of(Path("any"), found) == found
