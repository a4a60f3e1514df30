"""Selectors and changes: expressions over a message, as Columns that cannot fail on any row.

An expression sees the columns `id, queue, payload, headers, state, mature, tries`. `payload` is
JSON text, and `payload:a.b[0]` one of its fields, as text. `state:a.b[0]` is a field of the value
`a` of the state. If an expression raises an error on a
row, or its value cannot be pushed, the value is NULL: the row does not go there, and is counted.

Spark has no `try` for arbitrary expressions. But `try_to_binary` turns any error in its arguments
into NULL, on Spark Connect and in Databricks too. So it gets the value of the expression as text. A
CASE around the expression keeps Spark from computing a common part of two expressions earlier,
outside of the try.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    IntegralType,
    MapType,
    NullType,
    NumericType,
    StructType,
    TimestampType,
    VariantType,
)

from spark_queue.errors import GraphError, did_you_mean
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.parts import FROM_FILE, FieldPath, ForeignSql, names_function
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.runner.sql.compile import can_check, compile_foreign
from spark_queue.runner.sql.fields import JSON_COLUMN, to_spark_sql
from spark_queue.runner.sql.sizes import MAX_RESULT

log = logging.getLogger(__name__)

#: The columns that expressions see.
SELECTOR_COLUMNS = "id STRING, queue STRING, payload STRING, headers MAP<STRING, STRING>, mature TIMESTAMP, tries INT"

#: The columns of expressions in a query.
EXPRESSION_COLUMNS = f"{SELECTOR_COLUMNS}, state MAP<STRING, STRING>, {JSON_COLUMN} VARIANT"

#: The fields of a struct that a selector may return.
SELECTOR_FIELDS = ("mature", "delay", "tries")

#: The schema of that struct as JSON, between the guard and the push; times are in ms.
SELECTOR_RESULT = "mature BIGINT, delay BIGINT, tries INT"


@dataclass(frozen=True)
class Env:
    """A message as a callable selector sees it: its fields as Columns."""

    id: Column
    queue: Column
    payload: Column
    headers: Column
    state: Column
    mature: Column
    tries: Column

    @classmethod
    def columns(cls) -> Env:
        """Return the columns of the message that is routed."""
        return cls(*(F.col(name) for name in cls.__dataclass_fields__))

    def field(self, path: str, kind: str = "string") -> Column:
        """Return a field of the payload, such as `a.b[0]`.

        `kind`: a type of Spark SQL. The value is NULL if the field is missing or does not fit the
        type.
        """
        return F.try_variant_get(F.col(JSON_COLUMN), f"$.{path}", kind)

    def state_field(self, name: str, path: str = "", kind: str = "string") -> Column:
        """Return a value of the state, or the field at a path in it, as `field` does."""
        value = F.try_parse_json(self.state[name])
        return F.try_variant_get(value, f"$.{path}" if path else "$", kind)


# --- from expressions to Columns ------------------------------------------------------------------


def to_column(expression: Any, spark: SparkSession) -> Column:
    """Return the Column of an expression of a graph. Raises `GraphError` if it is invalid."""
    if isinstance(expression, Column):
        return expression
    if isinstance(expression, ForeignSql):
        return _foreign_column(expression, spark)
    if callable(expression):
        return _call(expression, getattr(expression, "__qualname__", repr(expression)))
    text = str(expression)
    if names_function(text):
        return _call(load_function(text.strip()), text)
    try:
        return F.expr(to_spark_sql(text)[0])
    except PySparkException as error:
        raise GraphError(explain_error(error, text)) from None


def _foreign_column(text: ForeignSql, spark: SparkSession) -> Column:
    """Return the Column of SQL that is not of the program. Raises `GraphError` if it is refused."""
    if not can_check(spark):
        if text.origin != FROM_FILE:
            raise GraphError(
                "exchanges that callers declare need Spark in the process of the server: Spark Connect has no check "
                "of their expressions. Declare the exchange in a graph file"
            )
        log.warning("%r is checked as text only, since this session is one of Spark Connect", str(text))
        return F.expr(to_spark_sql(text)[0])
    try:
        return compile_foreign(spark, text, to_spark_sql(text)[0], frozenset((JSON_COLUMN,)))
    except PySparkException as error:
        raise GraphError(explain_error(error, text)) from None


def load_function(path: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of `module:function`, or a function as it is.

    Raises `GraphError` if the module or the function is missing.
    """
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    try:
        made = import_module(module)
    except ImportError as error:
        raise GraphError(f"{path}: {error}") from None
    if not callable(function := getattr(made, name, None)):
        hint = did_you_mean(name, vars(made))
        raise GraphError(f"{path}: module {module!r} has no function {name!r}{hint}")
    return function  # type: ignore[no-any-return]


def _call(function: Callable[[Env], Any], name: str) -> Column:
    try:
        made = function(Env.columns())
    except Exception as error:
        raise GraphError(f"{name} fails: {type(error).__name__}: {error}") from error
    if isinstance(made, Column):
        return made
    if made is None or isinstance(made, bool):
        return F.lit(made)
    raise GraphError(f"{name} returns {made!r}, which is not a Column")


# --- checks ---------------------------------------------------------------------------------------


def type_of(frame: DataFrame, made: Column, text: Any) -> DataType:
    """Return the type of an expression over messages.

    Raises `GraphError` if it cannot be computed from one row alone.
    """
    try:
        kind = frame.select(made.alias("it")).schema["it"].dataType
        frame.where(made.isNotNull()).schema  # noqa: B018  WHERE refuses aggregates, windows and generators
    except PySparkException as error:
        raise GraphError(explain_error(error, text)) from None
    return kind


#: The types of each field of a struct that a selector may return, and their description.
_FIELD_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "mature": ((TimestampType, NumericType, NullType), "a TIMESTAMP, or seconds since 1970"),
    "delay": ((DayTimeIntervalType, NumericType, NullType), "seconds, or an INTERVAL"),
    "tries": ((IntegralType, NullType), "a whole number"),
}


def ignored_fields(kind: DataType) -> list[str]:
    """Return the fields of a selector's struct that have no effect."""
    return [name for name in getattr(kind, "names", ()) if name not in SELECTOR_FIELDS]


def check_selector_type(kind: DataType) -> None:
    """Raise `GraphError` if a selector must not have this type."""
    if isinstance(kind, BooleanType | NullType):
        return
    if not isinstance(kind, StructType):
        raise GraphError(
            f"it is {kind.simpleString()}, but must be BOOLEAN, or a STRUCT of {', '.join(SELECTOR_FIELDS)}"
        )
    for field in kind.fields:
        if field.name not in SELECTOR_FIELDS:
            continue  # it is ignored, as keuss-server does
        kinds, words = _FIELD_TYPES[field.name]
        if not isinstance(field.dataType, kinds):
            raise GraphError(f"its field {field.name!r} is {field.dataType.simpleString()}, but must be {words}")


@dataclass(frozen=True)
class CompiledExpression:
    """A compiled expression, and its type."""

    column: Column
    kind: DataType

    @property
    def text(self) -> Column:
        """Its value as text: a struct, a map or an array as JSON."""
        is_nested = isinstance(self.kind, StructType | MapType | ArrayType | VariantType)
        return F.to_json(self.column) if is_nested else self.column.cast("string")


class ExpressionCompiler:
    """Compiles the expressions below one path of a graph, and collects their mistakes."""

    def __init__(self, frame: DataFrame, path: FieldPath, mistakes: list[Mistake]) -> None:
        self._frame, self._path, self._mistakes = frame, path, mistakes

    def compile(
        self, expression: Any, *path: str, check: Callable[[DataType], None] = lambda _: None
    ) -> CompiledExpression | None:
        """Return the compiled expression, or `None` if there is none, or it has a mistake."""
        if expression is None:
            return None
        try:
            made = to_column(expression, self._frame.sparkSession)
            kind = type_of(self._frame, made, expression)
            check(kind)
        except GraphError as error:
            self._mistakes.append(Mistake((*self._path, *path), str(error)))
            return None
        return CompiledExpression(made, kind)

    def compile_texts(self, expressions: Mapping[str, Any], *path: str) -> dict[str, Column]:
        """Return the texts of those of several expressions that have no mistake, by name."""
        compiled = {name: self.compile(one, *path, name) for name, one in expressions.items()}
        return {name: one.text for name, one in compiled.items() if one is not None}


#: The errors of Spark for expressions that need, or make, more than one row.
_NOT_BY_ROW = ("INVALID_WHERE_CONDITION", "UNSUPPORTED_GENERATOR", "WINDOW_FUNCTION_NOT_ALLOWED", "MISSING_GROUP_BY")


def explain_error(error: PySparkException, text: Any) -> str:
    """Return Spark's error about an expression, in one line and about the text of the user."""
    said = re.sub(r"\s*SQLSTATE: \w+|\W*\(?line \d+,? pos \d+\)?", "", str(error).strip().splitlines()[0])
    if any(one in said for one in _NOT_BY_ROW):
        said = f"it must be computed from one message alone: {said}"
    said = said.rstrip(".; ").replace(JSON_COLUMN, "payload")
    if not isinstance(text, str):
        return said
    where = re.search(r"line (\d+),? pos (\d+)", str(error))
    place = f" at position {_position(text, int(where[1]), int(where[2]))}" if where else ""
    return f"{said}{place} in {text!r}"


def _position(text: str, line: int, column: int) -> int:
    """Return the position in the text of the user, from 1.

    `line`, `column`: the position that Spark reports, in the text that it got.
    """
    sql, positions = to_spark_sql(text)
    offset = sum(len(one) + 1 for one in sql.split("\n")[: line - 1]) + column
    new, old = max(one for one in positions if one[0] <= offset)
    return min(old + offset - new, len(text)) + 1


# --- guards: no row can fail ----------------------------------------------------------------------


def null_on_error(text: Column) -> Column:
    """Return the text, or NULL if it fails."""
    isolated = F.when(F.col("id").isNotNull(), text)
    return F.try_to_binary(isolated, F.lit("utf-8")).cast("string")


def selector_result(made: Column, kind: DataType) -> Column:
    """Return the result of a selector for a row: `false`, or JSON in the schema `SELECTOR_RESULT`.

    It is NULL if the selector failed.
    """
    if isinstance(kind, StructType):
        json = F.to_json(F.struct(*_result_fields(made, kind)))
        return null_on_error(F.when(made.isNull(), "false").otherwise(json))
    return null_on_error(F.when(made.cast("boolean"), "{}").otherwise("false"))


def _result_fields(made: Column, kind: StructType) -> list[Column]:
    parts = []
    for field in kind.fields:
        if field.name not in SELECTOR_FIELDS:
            continue
        part = made[field.name]
        match field.name, field.dataType:
            case "mature", TimestampType():
                part = F.unix_millis(part)
            case "delay", DayTimeIntervalType():
                part = F.unix_millis(F.timestamp_seconds(F.lit(0)) + part)
            case "mature" | "delay", _:
                ms = F.round(part.cast("double") * 1000)  # bounded: a cast may make 0 of NaN
                part = F.when(ms.isNotNull(), F.when(F.abs(ms) < 1e15, ms).otherwise(1e15)).cast("long")
        maximum = {"mature": MAX_TIME_MS, "delay": MAX_TIME_MS // 2, "tries": 2**31 - 1}[field.name]
        wrong = F.concat(F.lit(f"its {field.name} is "), part.cast("string"))
        checked = F.when(part.between(0, maximum) | part.isNull(), part).otherwise(F.raise_error(wrong))
        parts.append(checked.alias(field.name))
    return parts


def changed_payload(made: CompiledExpression) -> Column:
    """Return the new payload as JSON text, or NULL if it failed, is not JSON, or is too large."""
    text = null_on_error(made.text)
    return F.when(F.try_parse_json(text).isNotNull() & _fits(text), text)


def _fits(text: Column) -> Column:
    """Return whether a text is small enough for the next change, which may repeat it."""
    return F.octet_length(text) <= MAX_RESULT


def with_header(headers: Column, name: str, value: Column) -> Column:
    """Return the headers with one of them set."""
    others = F.map_filter(headers, lambda key, _: key != name)
    kept = F.when(F.map_contains_key(headers, name), others).otherwise(headers)
    return F.map_concat(kept, F.create_map(F.lit(name), value))


def changed_map(before: Column, made: Mapping[str, Column]) -> Column:
    """Return a map of texts with some entries set, or NULL if one of them failed or is too large.

    `made`: the new texts. An entry whose new value is NULL is removed.
    """
    # A value becomes `==text`, and NULL becomes `=`, so that NULL is only a failure.
    new = {
        name: null_on_error(F.concat(F.lit("="), F.coalesce(F.concat(F.lit("="), one), F.lit(""))))
        for name, one in made.items()
    }
    new = {name: F.when(_fits(one), one) for name, one in new.items()}
    names = F.array(*map(F.lit, new))
    values = F.array(*(F.when(one != "=", F.substr(one, F.lit(3))) for one in new.values()))
    failed = F.exists(F.array(*new.values()), lambda one: one.isNull())
    kept = F.map_filter(before, lambda name, _: ~F.array_contains(names, name))
    both = F.map_concat(kept, F.map_from_arrays(names, values))
    return F.when(~failed, F.map_filter(both, lambda _, value: value.isNotNull()))
