"""Where keys lie is told from the values of their first columns, whoever wrote them."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.columns import parse_column_type
from tidelock.fold.keys import KeyRange, bounded, joined, json_strings, key_range, key_text

pytestmark = pytest.mark.check

TEXTS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.sampled_from(
    [
        "",
        '"',
        "\\",
        "\x7f",
        "\u2028",
        "\n",
        "é",
        "\ud7ff",
        "\ue000",
        "\U00010000",
        ",",
        "[",
        '","',
        "x" * 300,
        "é" * 900,
    ]
)


def written(texts: list[str]) -> set[str]:
    """A key of several columns, by everyone who writes keys."""
    by_the_fold = bounded(joined(*(json_strings(pa.array([text])) for text in texts)))[0].as_py()
    by_ingest = msgspec.json.encode(texts).decode()
    return {by_the_fold, by_ingest, json.dumps(texts, ensure_ascii=False, separators=(",", ":"))}


def lies(key: str, found: KeyRange) -> bool:
    """By code point, as the tables' keys are compared."""
    return key == found.start if found.end is None else found.start <= key < found.end


@given(st.lists(TEXTS, min_size=2, max_size=4), st.data())
def test_every_key_lies_where_it_is_looked_for(texts: list[str], data: st.DataObject) -> None:
    given_ = texts[: data.draw(st.integers(1, len(texts)))]
    found = key_range(given_, len(texts))
    assert found is not None
    for key in written(texts):
        # A longer one is cut by the fold, and ingest takes none.
        if len(key.encode()) <= 1_024:
            assert lies(key, found), (key, found)


@given(st.lists(TEXTS, min_size=2, max_size=3), st.lists(TEXTS, min_size=2, max_size=3))
def test_what_is_surely_another_key_is_not_looked_at(texts: list[str], others: list[str]) -> None:
    # Letters from U+D7FF on sort otherwise in other encodings, so what follows one is not certain.
    plain = all(text.isalnum() and len(text) < 50 and max(text) < "\ud7ff" for text in texts)
    if plain and len(texts) == len(others) and texts != others:
        found = key_range(texts, len(texts))
        assert found is not None
        assert not any(lies(key, found) for key in written(others))


def test_a_key_that_the_fold_has_cut_is_found_by_its_beginning() -> None:
    customer, group = "c" * 240, "g" * 2_000
    (key,) = bounded(joined(*(json_strings(pa.array([text])) for text in ("m", customer, group)))).to_pylist()
    assert len(key) < 300
    for given_ in (["m"], ["m", customer], ["m", customer, group]):
        found = key_range(given_, 3)
        assert found is not None
        assert lies(key, found)


def test_the_key_of_one_column_is_its_text() -> None:
    assert key_range(['a"b'], 1) == KeyRange('a"b', None)
    assert key_range([""], 1) == KeyRange("", None)
    assert key_range([], 1) is None
    assert key_range([], 3) is None


def test_a_whole_key_without_escapes_is_one_key() -> None:
    assert key_range(["a", "5"], 2) == KeyRange('["a","5"]', None)
    assert key_range(["a"], 2) == KeyRange('["a",', '["a"-')
    assert key_range(["a\nb", "5"], 2) == KeyRange('["a', '["b')


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("string", "a", "a"), ("int", -5, "-5"), ("bigint", 2**60, str(2**60)), ("boolean", True, "true"),
        ("boolean", False, "false"), ("decimal(9,2)", Decimal("1.50"), "1.5"),
        ("date", date(2026, 1, 31), "2026-01-31"),
        ("timestamp", 1_500_000_000, "1970-01-01T00:00:01.5Z"), ("double", 0.5, None), ("string", None, None),
    ],
)  # fmt: skip
def test_a_value_has_the_text_that_it_has_in_keys(type_: str, value: object, text: str | None) -> None:
    assert key_text(parse_column_type(type_), value) == text
