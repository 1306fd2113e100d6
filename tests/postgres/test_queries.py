"""Named queries: found by name, described, and refused when the file is careless."""

from __future__ import annotations

import pytest

from tidelock.postgres.queries import load, parse

GOOD = """-- What this file is about.

-- name: read_head
-- Where the ledger ends now,
-- and when.
SELECT ingress_sequence
-- why: only one row
FROM ledger_head;

-- name: count_events
-- How many.
SELECT count(*) FROM events
"""


def test_a_query_is_found_by_its_name_without_its_description_and_last_semicolon() -> None:
    queries = parse(GOOD, "good.sql")
    assert list(queries) == ["read_head", "count_events"]
    assert queries["read_head"] == b"SELECT ingress_sequence\n-- why: only one row\nFROM ledger_head"
    assert queries.text("count_events") == "SELECT count(*) FROM events"


def test_a_description_may_take_several_lines() -> None:
    assert parse(GOOD, "good.sql").description("read_head") == "Where the ledger ends now, and when."


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(KeyError, match=r"no query 'read_haed' in good.sql; did you mean 'read_head'"):
        parse(GOOD, "good.sql")["read_haed"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-- name: a\nSELECT 1", "query a has no description"),
        ("-- name: a\n--\nSELECT 1", "query a has no description"),
        ("-- name: a\n-- What for.\n", "query a has no SQL"),
        ("-- name: a\n-- One.\nSELECT 1\n-- name: a\n-- Two.\nSELECT 2", "two queries are named a"),
        ("-- name: a b\n-- One.\nSELECT 1", "'a b' is not a name"),
        ("SELECT 1\n-- name: a\n-- One.\nSELECT 1", "SQL before the first"),
    ],
)
def test_a_careless_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(text, "bad.sql")


def test_the_ledgers_own_queries_load_from_the_package() -> None:
    queries = load("tidelock.ledger", "sql/ledger.sql")
    assert all(queries.description(name) for name in queries)
