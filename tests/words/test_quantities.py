"""Quantities: exact decimals in one normal form."""

import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.quantities import normal_quantity, numeric_binary

quantities = st.decimals(min_value=-(10**18) + 1, max_value=10**18 - 1, places=9, allow_nan=False)


@given(quantities)
def test_the_normal_form_is_the_same_number_in_plain_notation_without_trailing_zeros(quantity: Decimal) -> None:
    text = normal_quantity(str(quantity))
    assert Decimal(text) == quantity
    assert "e" not in text.lower()
    assert not ("." in text and text.endswith("0"))
    assert normal_quantity(text) == text


@given(quantities, st.integers(-30, 30))
def test_every_spelling_of_a_number_has_the_same_normal_form(quantity: Decimal, exponent: int) -> None:
    scaled = f"{quantity.scaleb(-exponent):f}e{exponent}"
    assert normal_quantity(scaled) == normal_quantity(str(quantity))


@pytest.mark.parametrize("text", ["-0", "0.0", "-0.000e5", "0e999999999999"])
def test_there_is_one_zero(text: str) -> None:
    assert normal_quantity(text) == "0"


@pytest.mark.parametrize(
    "text",
    ["1e18", "-1e18", "1000000000000000000", "1e-10", "0.0000000001", "1e999999999999", "1e-999999999999", "NaN",
     "Infinity", "", ".", "1.", ".5", " 1", "1 ", "0x10", "1_000", "١", "--1", "1e", "1,5"],
)  # fmt: skip
def test_what_is_too_large_too_fine_or_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a decimal number below"):
        normal_quantity(text)


@given(quantities)
def test_the_binary_form_is_what_postgres_reads(quantity: Decimal) -> None:
    encoded = numeric_binary(normal_quantity(str(quantity)))
    count, weight, sign, scale = struct.unpack_from("!hhHH", encoded)
    digits = struct.unpack_from(f"!{count}h", encoded, 8)
    value = sum((Decimal(digit).scaleb(4 * (weight - place)) for place, digit in enumerate(digits)), Decimal(0))
    assert (-value if sign else value) == quantity
    assert scale <= 9
