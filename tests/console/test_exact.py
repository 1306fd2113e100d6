"""What pages show has the digits that were recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidelock.console.exact import read, write
from tidelock.console.lineage import Lookup
from tidelock.console.parts.numbers import difference, figure, signed

TEXTS = [
    '{"amount": 1234567890123456.789, "p": 1.10, "big": 123456789012345678901234567890, "e": 1e400}',
    '[1.0, [], {}, {"a": [-0.50, "é\\"", null, true]}]',
    "1.10",
]


@pytest.mark.parametrize("text", TEXTS)
def test_numbers_are_written_as_they_were_recorded(text: str) -> None:
    assert write(read(text.encode())) == text


def test_with_an_indent_it_is_the_same_json() -> None:
    value: Any = {"a": [1, {"b": 1.5, "c": []}], "d": {}}
    assert write(value, "  ") == json.dumps(value, indent=2)


def test_a_row_is_looked_up_by_the_digits_of_its_key() -> None:
    where = read(b'{"price": {"_eq": 1234567890123456.789}}')
    assert Lookup("t", where, "", "t").query == '{"price": {"_eq": 1234567890123456.789}}'


def test_what_came_late_is_exact_whatever_its_size() -> None:
    value, total = "9" * 40, "9" * 39 + "0.5"
    assert difference(value, total) == "-8.5"
    assert difference("0", "1" * 50 + ".25") == "1" * 50 + ".25"


def test_numbers_are_written_alike_with_every_digit_that_was_recorded() -> None:
    shown = {
        "1234567.50": "1,234,567.50", "-1000": "-1,000", "0.000000001": "0.000000001", "1e30": "1e30", "cus_1": "cus_1",
        7: "7", 12345: "12,345", 0.1: "0.1", None: None, True: True,
    }  # fmt: skip
    assert {value: figure(value) for value in shown} == shown
    assert [signed(value) for value in (None, "0", "-1500", "1500.5")] == [None, None, "-1,500", "+1,500.5"]
