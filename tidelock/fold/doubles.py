"""Doubles as the decimals they are written as: the shortest digits that are read back as the same double.

Java before 19 writes more or other digits for some (JDK-4511638), and Spark's cast to decimal takes what Java writes.
Every result here is the same on any Java; `tests/spark` compares with Python's `repr`, which is exact.
"""

from __future__ import annotations

#: below it doubles lie closer than 10^-10, so that at most one number of ten decimals is read as the same double
_FINE = 2**19
#: from here on all doubles are whole
_WHOLE = 2**53
#: binary digits after the point of those between, at most
_BITS = 33


def double_quantity(value: str) -> str:
    """DECIMAL(38,9), rounded half away from zero at nine digits; null from 10^19 on, and for what is no number."""
    # Fewer digits than DECIMAL(38,9) has, so that a product has room for all of them: else Spark drops decimals.
    coarse = f"CAST(transform(array(abs({value})), a -> {_coarse('a')})[0] AS DECIMAL(29,9))"
    return (
        f"CASE WHEN abs({value}) < {_FINE}D THEN {_fine(value)}"
        f" WHEN abs({value}) < 1E19D THEN CAST({coarse} * {_sign(value)} AS DECIMAL(38,9)) END"
    )


def _fine(value: str) -> str:
    """Any digits that are read as this double round to the same nine decimals, but for one case.

    That is when a number in the middle of two of nine decimals is read as this double too. Having ten decimals it is
    then the shortest that is, so it is the one to round: away from zero.
    """
    rounded = f"CAST({value} AS DECIMAL(38,9))"
    middle = f"CAST(CAST({rounded} AS DECIMAL(18,9)) + 0.0000000005BD * {_sign(value)} AS DOUBLE)"
    away = f"CAST(CAST({rounded} AS DECIMAL(18,9)) + 0.000000001BD * {_sign(value)} AS DECIMAL(38,9))"
    return f"CASE WHEN {middle} = {value} THEN {away} ELSE {rounded} END"


def _coarse(value: str) -> str:
    """The number of fewest decimals among those nearest to the double that are read back as it."""
    return (
        f"CASE WHEN {value} >= {_WHOLE}D THEN {_whole(value)}"
        f" WHEN {value} = floor({value}) THEN CAST(CAST({value} AS BIGINT) AS DECIMAL(38,9))"
        f" ELSE {_fraction(value)} END"
    )


def _whole(value: str) -> str:
    # Halved, since a bigint ends before 10^19.
    exact = f"CAST(CAST({value} / 2 AS BIGINT) AS DECIMAL(19,0)) * 2BD"
    # Doubles of this size are at most 2048 apart: among tens of thousands there is never more than one to choose.
    powers = ", ".join(f"{10**digits}L" for digits in (4, 3, 2, 1))
    near = (
        f"transform(array({powers}), p -> CAST(CAST(({exact} + p div 2) div p AS DECIMAL(19,0)) * p AS DECIMAL(38,9)))"
    )
    found = f"get(filter({near}, near -> CAST(near AS DOUBLE) = {value}), 0)"
    return f"coalesce({found}, CAST({exact} AS DECIMAL(38,9)))"


def _fraction(value: str) -> str:
    whole = f"CAST(CAST({value} AS BIGINT) AS DECIMAL(16,0))"
    # The fraction is n / 2^33, exactly; n * 10^d / 2^33 = n * 5^d / 2^(33-d), which bigints hold.
    numerator = f"CAST(({value} - floor({value})) * {2**_BITS}D AS BIGINT)"
    ways = ", ".join(
        f"named_struct('times', {numerator} * {5**d}L, 'by', {2 ** (_BITS - d)}L,"
        f" 'unit', CAST({10.0**-d:.10f} AS DECIMAL(11,10)))"
        for d in range(11)
    )
    # To the nearest, and from the middle to the even one: so Python does.
    up = "way.times % way.by * 2 > way.by OR (way.times % way.by * 2 = way.by AND way.times div way.by % 2 = 1)"
    units = f"CAST(way.times div way.by + CASE WHEN {up} THEN 1 ELSE 0 END AS DECIMAL(11,0))"
    near = f"transform(array({ways}), way -> CAST({whole} + {units} * way.unit AS DECIMAL(38,10)))"
    found = f"get(filter({near}, near -> CAST(near AS DOUBLE) = {value}), 0)"
    return f"CAST({found} AS DECIMAL(38,9))"


def _sign(value: str) -> str:
    return f"CASE WHEN {value} < 0 THEN -1BD ELSE 1BD END"
