"""Members of data, taken out by us and by Postgres: the same texts, whatever the data."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tidelock.fold.streams import WHOLE, Member
from tidelock.postgres.database import Database
from tidelock.sinks.lakeranges import member_texts

pytestmark = pytest.mark.check

MEMBERS = [
    Member(("a",)), Member(("a",), raw=True), Member(("a", "b")), Member(("a", "b"), raw=True), Member(("a", "b", "é")),
    Member(("",)), WHOLE,
]  # fmt: skip
_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "é", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


def by_postgres(database: Database, data: str | None) -> list[str | None]:
    columns = ", ".join(member.postgres_sql() for member in MEMBERS)
    with database.connect_sync() as connection:
        row = connection.execute(
            f"SELECT {columns} FROM (SELECT %s::json AS data) AS event".encode(), [data]
        ).fetchone()
    assert row is not None
    return list(row)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "7",
        '"a"',
        "[]",
        '[{"a":1}]',
        '{"a":1.10}',
        '{"a":-0.0, "b":1}',
        '{"a":1e400}',
        '{ "a" : { "b" : 12345678901234567890.123456789012345678901234567890 } }',
        '{"a":"x\\u00e9\\n\\"","a":"last"}',
        '{"a":{"b":{"é":[1.50, {"x":null}]}}}',
        '{"a":null}',
        '{"a":"null"}',
        '{"a":{"b":"null"}}',
        '{"":"nothing"}',
        '{"a":[{"b":1}]}',
        '{"a":' + "1" * 2000 + "}",
    ],
)
def test_a_members_text_is_what_postgres_gives(database: Database, data: str | None) -> None:
    assert member_texts(data, MEMBERS) == by_postgres(database, data)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_values, st.booleans())
def test_any_data_has_the_members_that_postgres_finds(database: Database, value: object, escaped: bool) -> None:
    data = json.dumps(value, ensure_ascii=escaped)
    assert member_texts(data, MEMBERS) == by_postgres(database, data)
