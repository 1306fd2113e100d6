"""Latest rows: key and row of every event of a keyed stream, as Spark SQL, with the columns that formulas calculate.

A row travels as strings, in as many columns as the widest table has, and gets its types in the kernel.

Formulas are checked and compiled by Spark at the start of the fold. A formula sees the columns of its stream by name,
as typed values. Timestamps are BIGINT nanoseconds, which is exact: `timestamp_micros(at div 1000)` converts one to a
timestamp, and a result of type timestamp is stored in nanoseconds again. Formulas do not see each other's results.
Arithmetic has Spark's types, so an int divided by an int is a double and decimals beyond 38 digits are rounded to fewer
decimals. What cannot be computed is null: overflow, division by zero, NaN and infinity, casts of what does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelock.columns import STRING, ColumnType, table_column
from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.fold.formulas import ALLOWED, NUMERIC, Formula, FormulaRefused, read_formula
from tidelock.fold.kernel.latest import VALUE, LatestTable
from tidelock.fold.streams import WHOLE, Slots, StreamSql, by_stream, sql_of_streams
from tidelock.sections import Section
from tidelock.spark import casts
from tidelock.tables import UNDECLARED, Table, latest_table

_FILE = "tidelock.toml"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_DOUBLE_MAX = "1.7976931348623157E308D"
#: Spark's type -> ours, and the conversion of a value `v` to one that the column can hold
_RESULTS = {
    "string": ("string", "v"),
    "boolean": ("boolean", "v"),
    "tinyint": ("int", "CAST(v AS INT)"),
    "smallint": ("int", "CAST(v AS INT)"),
    "int": ("int", "v"),
    "bigint": ("bigint", "v"),
    "float": ("double", f"CASE WHEN abs(v) <= {_DOUBLE_MAX} THEN CAST(v AS DOUBLE) + 0D END"),
    "double": ("double", f"CASE WHEN abs(v) <= {_DOUBLE_MAX} THEN v + 0D END"),
    "date": ("date", "CASE WHEN v BETWEEN DATE '0001-01-01' AND DATE '9999-12-31' THEN v END"),
    "timestamp": (
        "timestamp",
        "CASE WHEN unix_seconds(v) BETWEEN -9214560000L AND 9214646399L THEN unix_micros(v) * 1000L END",
    ),
}
_HINT = "results can be string, boolean, int, bigint, double, decimal, date or timestamp"


@dataclass(frozen=True, slots=True)
class Calculation:
    """A calculated column."""

    #: expression over the SQL that was given for the stream's columns
    sql: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Latest:
    """A keyed stream and its table."""

    stream: Stream
    table: Table
    #: SQL of the table's columns, typed, in order
    values: tuple[tuple[ColumnType, str], ...]


class LatestSteps:
    """The steps of all keyed streams together."""

    def __init__(self, slots: Slots, calculated: Mapping[str, Mapping[str, Calculation]]) -> None:
        self._streams = {
            name: stream_sql for name, stream_sql in sql_of_streams(slots).items() if stream_sql.stream.key
        }
        self.latest = {
            name: _latest(stream_sql, slots, calculated.get(name, {})) for name, stream_sql in self._streams.items()
        }
        self.width = max((len(latest.values) for latest in self.latest.values()), default=0)

    @property
    def columns(self) -> list[str]:
        """The columns of a row."""
        return [VALUE.format(number=number) for number in range(self.width)]

    def prepared(self) -> list[str]:
        """The key of an event's row, and the row."""
        keys = {name: stream_sql.joined(stream_sql.stream.key) for name, stream_sql in self._streams.items()}
        return [f"{by_stream(keys, 'STRING')} AS `$key`", *(self._value(number) for number in range(self.width))]

    def kernel(self) -> tuple[LatestTable, ...]:
        """Their description for the kernel."""
        return tuple(LatestTable(name, latest.table, latest.stream.live) for name, latest in self.latest.items())

    def _value(self, number: int) -> str:
        texts = {
            name: casts.transport(*latest.values[number])
            for name, latest in self.latest.items()
            if number < len(latest.values)
        }
        return f"{by_stream(texts, 'STRING')} AS {VALUE.format(number=number)}"


def row_columns(stream_sql: StreamSql, slots: Slots) -> dict[str, str]:
    """SQL of a stream's table columns of an event, except calculated ones."""
    stream = stream_sql.stream
    if stream.columns:
        return {name: stream_sql.typed(name) for name in stream.columns}
    values = {table_column(name): stream_sql.typed(name) for name in stream.key}
    values |= {name: name for name in UNDECLARED if name != "data"}
    return values | {"data": slots.slot(stream.name, WHOLE)}


def compile_calculations(
    session: SparkSession, stream: Stream, column: Callable[[str], str]
) -> Mapping[str, Calculation]:
    """The calculated columns of a stream, where `column` is the SQL of a column's typed value. Needs no data.

    Raises SettingsError with the column, the problem and what is allowed.
    """
    section = Section(Section("streams", {}, _FILE).key(stream.name), {}, _FILE)
    section = Section(section.key("calculated"), {}, _FILE)
    found = {}
    for name, text in stream.calculated.items():
        try:
            found[name] = _Compiler(session, stream).compiled(text, column)
        except FormulaRefused as refused:
            raise _error(section, name, text, stream, str(refused)) from None
    return found


def _latest(stream_sql: StreamSql, slots: Slots, calculated: Mapping[str, Calculation]) -> Latest:
    table = latest_table(stream_sql.stream, {name: calculation.type for name, calculation in calculated.items()})
    values = row_columns(stream_sql, slots) | {name: calculation.sql for name, calculation in calculated.items()}
    return Latest(stream_sql.stream, table, tuple((type_, values[name]) for name, type_ in table.columns.items()))


def _error(section: Section, name: str, text: str, stream: Stream, reason: str) -> SettingsError:
    shown = text if len(text) <= 100 else text[:100] + "..."
    columns = stream.available()
    others = "" if len(stream.calculated) < 2 else " (not other calculated ones)"
    return section.fail(name, f"{shown!r}: {reason}. Columns: {columns}{others}. Allowed: {ALLOWED}")


class _Compiler:
    """One formula and the columns it uses, which are the fields of a struct `row`."""

    def __init__(self, session: SparkSession, stream: Stream) -> None:
        self._session = session
        self._stream = stream
        self._used: dict[str, str] = {}

    def compiled(self, text: str, column: Callable[[str], str]) -> Calculation:
        formula = read_formula(text, self._field, self._type_of)
        self._check(formula)
        type_, result = _result(self._type_of(formula.sql))
        checked = f"transform(array({formula.sql}), v -> {result})[0]"
        fields = ", ".join(f"'{field}', {column(name)}" for name, field in self._used.items())
        # The columns are read once, however often the formula names them.
        sql = f"transform(array(named_struct({fields})), row -> {checked})[0]" if fields else checked
        return Calculation(sql, type_)

    def _field(self, name: str) -> str | None:
        if not self._stream.has(name):
            return None
        return f"row.{self._used.setdefault(name, f'c{len(self._used)}')}"

    def _analyzed(self, *expressions: str) -> Any:
        """The expressions over a row of nulls, analysed but not run."""
        nulls = (
            f"'{field}', CAST(NULL AS {_spark_type(self._stream.type_of(name) or STRING)})"
            for name, field in (self._used or {"": "c0"}).items()
        )
        columns = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(expressions))
        try:
            return self._session.sql(f"SELECT {columns} FROM (SELECT named_struct({', '.join(nulls)}) AS row)")
        except PySparkException as error:
            raise FormulaRefused(_reason(error)) from None

    def _type_of(self, sql: str) -> str:
        return str(self._analyzed(sql).schema[0].dataType.simpleString())

    def _check(self, formula: Formula) -> None:
        demands = formula.demands
        frame = self._analyzed(formula.sql, *(sql for sql, _, _ in demands))
        for (_, types, purpose), field in zip(demands, frame.schema[1:], strict=True):
            type_ = field.dataType.simpleString()
            if re.fullmatch(types, type_) is None:
                wanted = "a number" if types == NUMERIC else types.replace("|", " or ")
                raise FormulaRefused(f"{type_} was given where {wanted} is needed {purpose}; CAST it")
        expressions = frame._jdf.queryExecution().analyzed().expressions()
        self._check_casts(expressions.apply(0))

    def _check_casts(self, node: Any) -> None:
        """Implicit casts raise in Spark if they fail: they must be written explicitly, so that they return null."""
        if node.getClass().getSimpleName() == "Cast" and node.evalMode().toString() == "ANSI":
            child, wanted = node.child(), node.dataType().simpleString()
            given = child.dataType().simpleString()
            constant = child.getClass().getSimpleName() == "Literal" and given != "string"
            jvm: Any = self._session._jvm
            cast = jvm.org.apache.spark.sql.catalyst.expressions.Cast
            if not (constant or _total(given, wanted) or cast.canUpCast(child.dataType(), node.dataType())):
                raise FormulaRefused(f"{given} was given where {wanted} is needed; write CAST(... AS {wanted})")
        children = node.children()
        for number in range(children.size()):
            self._check_casts(children.apply(number))


def _total(given: str, wanted: str) -> bool:
    """Casts that Spark does not guarantee to be exact, but that never fail."""
    return (given, wanted) in (("timestamp", "date"), ("string", "binary")) or (
        re.fullmatch(NUMERIC, given) is not None and wanted in ("double", "float")
    )


def _result(type_: str) -> tuple[ColumnType, str]:
    if decimal := _DECIMAL.fullmatch(type_):
        return ColumnType("decimal", int(decimal[1]), int(decimal[2])), "v"
    if type_ not in _RESULTS:
        raise FormulaRefused(f"the formula returns {type_}, which is not a column type; {_HINT}")
    name, checked = _RESULTS[type_]
    return ColumnType(name), checked


def _spark_type(type_: ColumnType) -> str:
    return {"json": "STRING", "timestamp": "BIGINT"}.get(type_.name, str(type_))


def _reason(error: PySparkException) -> str:
    """Spark's reason without its position in generated SQL."""
    first = str(error).strip().splitlines()[0]
    return re.sub(r"\s*SQLSTATE.*| in line \d+.*|; line \d+.*", "", first)
