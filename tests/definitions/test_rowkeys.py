"""Row keys: the text of an event's key columns."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.columns import parse_column_type
from tidelock.definitions import Stream
from tidelock.definitions.rowkeys import MissingKeyColumn, row_key

# Postgres and JSON text have neither half pairs nor NUL; such events never come here.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def keyed(**columns: str) -> Stream:
    return Stream("trades", tuple(columns), {name: parse_column_type(text) for name, text in columns.items()})


def key_of(column_type: str, value: str) -> str:
    """The row key of an event whose one key column has that JSON value."""
    return row_key(keyed(id=column_type), {}, b'{"other":[1,{}], "id" : %s }' % value.encode())


@given(texts, st.booleans())
def test_a_string_is_its_own_text_however_it_was_escaped(text: str, escaped: bool) -> None:
    assert key_of("string", json.dumps(text, ensure_ascii=escaped)) == text


@given(st.lists(texts, min_size=2, max_size=4), st.booleans())
def test_several_columns_are_a_compact_array_with_nothing_escaped_that_need_not_be(
    values: list[str], escaped: bool
) -> None:
    names = [f"k{i}" for i in range(len(values))]
    data = json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=escaped).encode()
    key = row_key(keyed(**dict.fromkeys(names, "string")), {}, data)
    assert key == json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def test_an_array_of_a_key_has_texts_only() -> None:
    stream = keyed(symbol="string", day="date", lot="int", price="decimal(18,4)", open="boolean")
    data = '{"open":true,"price":1.50,"lot":"007","day":"2026-01-31","symbol":"客户 \\"A\\""}'
    assert row_key(stream, {}, data.encode()) == '["客户 \\"A\\"","2026-01-31","7","1.5","true"]'


@pytest.mark.parametrize("value", ["123", '"123"', '"0123"', '"+123"', "123.0", "1.23e2", '"1230e-1"'])
@pytest.mark.parametrize("column_type", ["int", "bigint", "decimal(5,2)"])
def test_every_spelling_of_a_number_is_the_same_row(column_type: str, value: str) -> None:
    assert key_of(column_type, value) == "123"


@given(st.integers(-(2**64), 2**64))
def test_a_whole_number_keeps_its_digits_in_and_out_of_range(number: int) -> None:
    for column_type in ("int", "bigint", "decimal(38,0)"):
        assert key_of(column_type, str(number)) == str(number)
        assert key_of(column_type, f'"{number}"') == str(number)


@given(st.decimals(min_value=-(10**14) + 1, max_value=10**14 - 1, places=4))
def test_a_decimal_is_the_same_number_in_plain_notation(number: Decimal) -> None:
    for value in (f"{number:f}", f'"{number:f}"', f"{number:E}"):
        key = key_of("decimal(18,4)", value)
        assert Decimal(key) == number
        assert "E" not in key
        assert "." not in key or not key.endswith("0")


@pytest.mark.parametrize(
    ("column_type", "value", "key"),
    [
        ("int", "2147483648.0", "2147483648.0"),
        ("int", '"2147483648.0"', "2147483648.0"),
        ("bigint", "9223372036854775807.0", "9223372036854775807"),
        ("bigint", "9223372036854775808.0", "9223372036854775808.0"),
        ("bigint", "1.5", "1.5"),
        ("bigint", '"seven"', "seven"),
        ("bigint", "true", "true"),
        ("bigint", '{ "a": 1 }', '{ "a": 1 }'),
        ("decimal(4,2)", "1.250", "1.25"),
        ("decimal(4,2)", "1.255", "1.255"),
        ("decimal(4,2)", "100.0", "100.0"),
        ("string", "5.0", "5.0"),
        ("boolean", "false", "false"),
        ("boolean", '"no"', "no"),
        ("date", '"2026-02-30"', "2026-02-30"),
        ("timestamp", "1769904000", "1769904000"),
        ("timestamp", '"yesterday"', "yesterday"),
        ("timestamp", '"2026-01-31T23:59:59.1234567890Z"', "2026-01-31T23:59:59.1234567890Z"),
    ],
)
def test_a_value_that_does_not_fit_keeps_the_text_it_was_sent_with(column_type: str, value: str, key: str) -> None:
    assert key_of(column_type, value) == key


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-31T23:59:59.5Z",
        "2026-01-31T23:59:59.500000000Z",
        "2026-02-01T01:59:59.5+02:00",
        "2026-01-31t23:59:59.50z",
    ],
)
def test_an_instant_is_one_row_in_every_zone(value: str) -> None:
    assert key_of("timestamp", f'"{value}"') == "2026-01-31T23:59:59.5Z"


@pytest.mark.parametrize(
    "value", ["1e10000000000", '"1e10000000000"', "1e-10000000000", "1" * 1_000_000, f"0.{'1' * 1_000_000}"]
)
@pytest.mark.parametrize("column_type", ["int", "bigint", "decimal(38,9)"])
def test_a_huge_number_costs_what_its_text_costs(column_type: str, value: str) -> None:
    assert key_of(column_type, value) == value.strip('"')


@pytest.mark.parametrize("data", [None, b"{}", b'{"a":1,"b":null}', b'{"a":1,"B":2}', b"[]", b"7", b'"b"', b"null"])
def test_a_missing_or_null_member_is_named(data: bytes | None) -> None:
    with pytest.raises(MissingKeyColumn, match='stream "trades" needs a value for its key column "b"') as missing:
        row_key(keyed(b="bigint"), {}, data)
    assert missing.value.column == "b"


def test_an_empty_text_is_a_value() -> None:
    assert key_of("string", '""') == ""


def test_without_declared_columns_a_key_reads_the_envelope_and_paths() -> None:
    stream = Stream("jobs", ("resource_id", "data.run.id"))
    assert row_key(stream, {"resource_id": "r1"}, b'{"run":{"id":7}}') == '["r1","7"]'
    with pytest.raises(MissingKeyColumn, match="resource_id"):
        row_key(stream, {"resource_id": None}, b'{"run":{"id":7}}')
    for data in (b"{}", b'{"run":7}', b'{"run":{}}', b'{"run":{"id":null}}', b'{"run":null}', None):
        with pytest.raises(MissingKeyColumn, match=r"data\.run\.id"):
            row_key(stream, {"resource_id": "r1"}, data)


def test_a_declared_column_hides_the_envelope_column_of_its_name() -> None:
    assert row_key(keyed(resource_id="bigint"), {"resource_id": "r1"}, b'{"resource_id":7}') == "7"


def test_the_last_of_repeated_members_counts() -> None:
    assert row_key(keyed(id="int"), {}, b'{"id":1,"id":2}') == "2"


def test_streams_of_one_name_but_other_columns_are_distinguished() -> None:
    assert row_key(keyed(id="string"), {}, b'{"id":"07"}') == "07"
    assert row_key(keyed(id="int"), {}, b'{"id":"07"}') == "7"
