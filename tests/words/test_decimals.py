"""Decimals as text: exact, plain, safe for numbers of any size."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.decimals import plain_decimal

# Twenty-six digits: the arithmetic of these tests is exact with the twenty-eight that Decimal computes with.
decimals = st.decimals(min_value=-(10**14) + 1, max_value=10**14 - 1, places=12)


@given(decimals)
def test_the_plain_form_is_the_same_number_without_exponent_or_trailing_zeros(number: Decimal) -> None:
    text = plain_decimal(str(number), 38, 38)
    assert text is not None
    assert Decimal(text) == number
    assert "e" not in text.lower()
    assert "." not in text or not text.endswith("0")
    assert text != "-0"


@given(decimals, st.integers(-40, 40), st.integers(0, 5))
def test_every_spelling_of_a_number_has_one_plain_form(number: Decimal, exponent: int, zeros: int) -> None:
    digits = f"{number.scaleb(-exponent):f}"
    spelled = digits.replace("-", "-" + "0" * zeros) if digits.startswith("-") else "0" * zeros + digits
    assert plain_decimal(f"{spelled}e{exponent}", 38, 38) == plain_decimal(str(number), 38, 38)


@given(decimals, st.integers(0, 22), st.integers(0, 14))
def test_a_number_fits_exactly_when_nothing_would_be_cut_off(number: Decimal, whole: int, fraction: int) -> None:
    scaled = abs(number) * 10**12
    fits = abs(number) < 10**whole and scaled % 10 ** max(12 - fraction, 0) == 0
    assert (plain_decimal(str(number), whole, fraction) is not None) == fits


@pytest.mark.parametrize(
    "text", ["", "-", ".", "1.", ".5", "1e", "0x1", "NaN", "Infinity", " 1", "1 ", "1_0", "１", "1,5"]
)
def test_what_is_not_a_number_has_no_plain_form(text: str) -> None:
    assert plain_decimal(text, 38, 38) is None


@pytest.mark.parametrize(
    "text", ["1e10000000000", "1e-10000000000", "1e" + "9" * 100_000, "-1e-" + "9" * 100_000, "9" * 2_000_000]
)
def test_a_huge_number_does_not_fit_and_costs_no_time(text: str) -> None:
    assert plain_decimal(text, 38, 38) is None


@pytest.mark.parametrize("text", ["-0", "0.000", "0e999999999999999", "-0.0e-5"])
def test_zero_is_zero_however_it_is_written(text: str) -> None:
    assert plain_decimal(text, 0, 0) == "0"


def test_digits_and_exponent_may_balance() -> None:
    assert plain_decimal("0." + "0" * 999 + "5e1001", 38, 38) == "50"
    assert plain_decimal("5" + "0" * 1000 + "e-1000", 38, 38) == "5"
