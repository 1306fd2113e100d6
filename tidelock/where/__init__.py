"""Filters in Hasura's `where` form: parsed once against a table's columns, then evaluated by SQL or by Python.

    parse_where({"price": {"_gt": 10}}, columns)  ->  an expression, canonical by construction
    expression.text                               the canonical JSON: the same however the filter was written
    expression.used_columns                       the columns it uses
    where_sql(expression, POSTGRES)               a condition for Postgres, or for Spark
    evaluate(expression, row)                     true, false or None for unknown
    compile_where(expression) a fast function of rows: whether it is true

Logic is SQL's, three-valued: a comparison with null is unknown, and only true matches. Nothing here does I/O, and
nothing knows whose columns these are.
"""

from tidelock.where.evaluation import compile_where, evaluate
from tidelock.where.expressions import FALSE, TRUE, All, Bound, Either, Expression, IsNull, OneOf
from tidelock.where.parser import DEPTH_MAX, SIZE_MAX, TEXT_LENGTH_MAX, InvalidFilter, parse_where
from tidelock.where.sql import POSTGRES, SPARK, Dialect, where_sql

__all__ = [
    "DEPTH_MAX",
    "FALSE",
    "POSTGRES",
    "SIZE_MAX",
    "SPARK",
    "TEXT_LENGTH_MAX",
    "TRUE",
    "All",
    "Bound",
    "Dialect",
    "Either",
    "Expression",
    "InvalidFilter",
    "IsNull",
    "OneOf",
    "compile_where",
    "evaluate",
    "parse_where",
    "where_sql",
]
