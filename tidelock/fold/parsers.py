"""Parsers of plugins: tried at the start of the fold, since one that raises later would stop it for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, SparkSession, functions

from tidelock.errors import SettingsError
from tidelock.eventtimes import Parser
from tidelock.fold.source import single_partition
from tidelock.spark.runtime import reason

#: what producers send where a time should be
_TEXTS = [
    *["", " ", "0", "-0", "-1", "1.5", "1e3", "1e400", "-1e-400", "1" + "0" * 40, "9223372036854775808", "007", "+1"],
    *["1769904000", "1769904000000", "1769904000000000", "1769904000000000000", "-1769904000.000000001", "١٢٣"],
    *["NaN", "Infinity", "-Infinity", "null", "true", "{}", "[]", '{"a":1}', "[1,2]", "x", "é", "\n", "%"],
    *["2026-01-31", "2026-02-30", "2026-01-31T23:59:59Z", "2026-01-31T23:59:60Z", "2026-01-31T24:00:00+25:00"],
    *["2026-01-31 23:59:59", "0000-00-00T00:00:00Z", "99999-12-31T23:59:59Z", "-0001-01-01", "31/01/2026", "2026-W05"],
    *["23:59:59", "now", "epoch", "Sat, 31 Jan 2026 23:59:59 GMT", "a" * 10_000, "9" * 10_000],
]


def check_parser(session: SparkSession, stream: str, name: str, parser: Parser) -> None:
    """Whether a parser keeps to what a parser is. Raises SettingsError that says why not."""
    try:
        with _quiet():
            _check(session, parser)
    except _Unfit as unfit:
        why = str(unfit)
    except (PySparkException, Py4JError) as error:
        why = f"Spark refuses it: {reason(error)}"
    # Whatever it does: it is not our code.
    except Exception as error:
        why = f"it raised {type(error).__name__}: {error}"
    else:
        return
    raise SettingsError(f'the parser of event-time type "{name}" (stream "{stream}") cannot be used: {why}')


class _Unfit(Exception):
    """What is wrong with a parser."""


def _check(session: SparkSession, parser: Parser) -> None:
    # As a range of the fold: a table that is part of the plan would be computed before Spark rewrites expressions, and
    # what is rewritten may raise where the original does not.
    texts = single_partition(session, pa.table({"text": pa.array([*_TEXTS, None], pa.string())}))
    column: object = parser(functions.col("text"))
    if not isinstance(column, Column):
        raise _Unfit(f"it must give a Column, not {type(column).__name__}")
    parsed = texts.select("text", column.alias("instant"))
    given = parsed.schema["instant"].dataType.simpleString()
    if given != "bigint":
        raise _Unfit(f"it must give bigint, nanoseconds since 1970, not {given}")
    plan: Any = parsed._jdf.queryExecution().analyzed()
    _check_steady(plan.expressions().apply(1))
    try:
        parsed.collect()
    except (PySparkException, Py4JError) as error:
        raise _Unfit(f"it raises where it must give null (use try_cast and the like): {reason(error)}") from None


def _check_steady(node: Any) -> None:
    """The same text must be the same time whenever it is read, or a replay would give other rows."""
    children = node.children()
    for number in range(children.size()):
        _check_steady(children.apply(number))
    kind = node.getClass().getSimpleName()
    if not node.deterministic() or kind.startswith(("Current", "LocalTimestamp", "Now")):
        raise _Unfit(f"it depends on more than the text: {node.prettyName()}")


@contextmanager
def _quiet() -> Iterator[None]:
    """PySpark logs what it raises, with its trace; here it is told in a line."""
    logger = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
