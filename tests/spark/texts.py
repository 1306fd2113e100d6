"""Texts that columns are read from, fitting, nearly fitting and odd ones, and what the model makes of them."""

from __future__ import annotations

import math
import struct
from datetime import date
from typing import Any

from hypothesis import strategies as st

from tests.model import values

TYPES = [
    *["string", "int", "bigint", "double", "boolean", "timestamp", "date"],
    *["decimal(38,9)", "decimal(18,4)", "decimal(5,5)", "decimal(38,0)", "decimal(38,38)", "decimal(1,0)"],
]
INSTANTS = st.integers(-9_214_560_000 * 10**9, 9_214_646_400 * 10**9 - 1)
ODD = [
    *["", " ", "1 ", " 1", "1\n", "\t1", "+1", "-1", "+-1", "1.", ".5", "0.5", "-0", "+0", "-0.0", "00", "007", "0x1"],
    *["1e2", "1E2", "1e+2", "100e-2", "1e", "e1", "1e-", "1.e2", "15e-1", "1e0000000000000000002", "1e-0", "1e+00"],
    *["1e999999999999", "-1e-999999999999", "0e999999999999", "0.0e-9999999999999999999999", "1e10000000000"],
    *["NaN", "Infinity", "-Infinity", "inf", "nan", "null", "1d", "1f", "1L", "1_000", "1,5", "²", "１", "٣", "৪"],
    *["2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"],
    *["-9223372036854775808", "-9223372036854775809", "9223372036854775807.0", "9223372036854775807.5", "1e19"],
    *["1.7976931348623157e308", "1.7976931348623159e308", "1e309", "-1e309", "5e-324", "2e-324", "-2e-324", "1e-400"],
    *[
        "99999999999999.9999",
        "99999999999999.99990",
        "99999999999999.99999",
        "0.00001",
        "0.99999",
        "00.99999",
        "1.00000",
    ],
    *["9" * 38, "9" * 39, "-" + "9" * 38, "0." + "9" * 38, "0." + "9" * 39, "1e37", "1e38", "1e-38", "1e-39"],
    *["0" * 50 + "1", "1" + "0" * 50, "1" + "0" * 50 + "e-50", "0." + "0" * 50 + "1e51", "1." + "0" * 60],
    *["true", "false", "True", "TRUE", "t", "yes", "1", "true ", "false\n"],
    *["2026-01-31", "2026-02-29", "2024-02-29", "2026-1-31", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01"],
    *["2026-01-31 ", "2026-01-31T00:00:00", "20260131", "+2026-01-31", "1582-10-10", "1900-02-29", "٢٠٢٦-01-31"],
    *["2026-01-31T23:59:59Z", "2026-01-31t23:59:59z", "2026-01-31 23:59:59Z", "2026-01-31T23:59:60Z", "epoch"],
    *["2026-01-31T24:00:00Z", "2026-01-31T23:60:00Z", "2026-02-30T00:00:00Z", "2026-01-31T23:59:59", "now"],
    *["2026-01-31T23:59:59.Z", "2026-01-31T23:59:59.1234567890Z", "2026-01-31T23:59:59.000000001Z"],
    *[
        "2026-01-31T23:59:59+00:00",
        "2026-01-31T23:59:59-00:00",
        "2026-01-31T23:59:59+23:59",
        "2026-01-31T23:59:59+24:00",
    ],
    *["2026-01-31T23:59:59-18:30", "2026-01-31T23:59:59+1:00", "2026-01-31T23:59:59+0100", "2026-01-31T23:59Z"],
    *[
        "1677-12-31T23:59:59.999999999Z",
        "1678-01-01T00:00:00Z",
        "1677-12-31T23:30:00-01:00",
        "1678-01-01T00:30:00+01:00",
    ],
    *[
        "2261-12-31T23:59:59.999999999Z",
        "2262-01-01T00:00:00Z",
        "2262-01-01T00:30:00+01:00",
        "2261-12-31T23:30:00-01:00",
    ],
    *["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1969-12-31T23:59:59.5Z"],
    *["1969-12-31 23:59:59.123456789-05:30", "2026-01-31T23:59:59Z\n", "2026-01-31T23:59:59.5z[UTC]"],
]


def texts_of(type_: str) -> st.SearchStrategy[str | None]:
    """Fitting ones, nearly fitting ones, and anything."""
    digits = st.text("0123456789", max_size=25) | st.text("09", max_size=45)
    number = st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["", "", "-", "+"]),
        digits,
        st.just("") | st.builds(".{}".format, digits),
        st.just("") | st.builds("{}{}".format, st.sampled_from(["e", "E", "e-", "e+"]), st.integers(0, 45)),
    )
    two = st.integers(0, 61).map("{:02}".format)
    day = st.dates(date(1670, 1, 1), date(2270, 1, 1)).map(date.isoformat) | st.dates().map(date.isoformat)
    near_day = day | st.builds("{:04}-{}-{}".format, st.integers(0, 10000), two, two)
    fraction = st.just("") | st.text("0123456789", max_size=10).map(".{}".format)
    zone = st.sampled_from(["Z", "Z", "z", "", "+"]) | st.builds("{}{}:{}".format, st.sampled_from("+-"), two, two)
    clock = st.times().map(lambda time: time.isoformat("seconds")) | st.builds("{}:{}:{}".format, two, two, two)
    moment = st.builds("{}{}{}{}{}".format, near_day, st.sampled_from(["T", "T", "t", " ", ""]), clock, fraction, zone)
    own: dict[str, st.SearchStrategy[str]] = {
        "timestamp": INSTANTS.map(values.instant_text) | moment,
        "date": near_day,
        "int": st.integers(-(2**31) - 2, 2**31 + 1).map(str) | number,
        "bigint": st.integers(-(2**63) - 2, 2**63 + 1).map(str) | number,
        "double": st.floats().map(repr) | number,
    }
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return own.get(type_, number) | st.sampled_from(ODD) | text | st.none()


def read(type_: str, text: str | None) -> tuple[bool, Any]:
    """Whether it fits, and the value, by the model."""
    if text is None:
        return True, None
    try:
        return True, values.read(type_, text)
    except values.Misfit:
        return False, None


def signed(value: Any) -> Any:
    """Comparable where zeros have signs."""
    return ("zero", math.copysign(1, value)) if isinstance(value, float) and value == 0 else value


def doubles() -> st.SearchStrategy[float]:
    bits = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("d", struct.pack("Q", n))[0])
    near = st.builds(lambda n, k: math.nextafter(n * 5 / 10**10, k), st.integers(-(10**17), 10**17), st.floats())
    middle = st.integers(-(10**16), 10**16).map(lambda n: (2 * n + 1) * 5 / 10**10)
    halves = st.builds(lambda n, k: n + 2.0**-k, st.integers(0, 2**40), st.integers(0, 33))
    powers = st.builds(lambda k, s: s * 2.0**k, st.integers(-80, 70), st.sampled_from([-1, 1]))
    sized = st.builds(lambda m, e: m * 10.0**e, st.floats(-10, 10), st.integers(-12, 19))
    return st.floats() | bits | near | middle | halves | powers | sized
