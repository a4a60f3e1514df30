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

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
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
from sqlglot import TokenError, tokenize
from sqlglot.tokenizer_core import Token, TokenType

from spark_queue.errors import GraphError, did_you_mean
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.parts import FieldPath, names_function
from spark_queue.messages.schema import MAX_TIME_MS

#: The columns that expressions see.
SELECTOR_COLUMNS = "id STRING, queue STRING, payload STRING, headers MAP<STRING, STRING>, mature TIMESTAMP, tries INT"

#: The payload as a VARIANT, parsed once for all expressions.
JSON_COLUMN = "_json"
EXPRESSION_COLUMNS = f"{SELECTOR_COLUMNS}, state MAP<STRING, STRING>, {JSON_COLUMN} VARIANT"

#: The fields of a struct that a selector may return.
SELECTOR_FIELDS = ("mature", "delay", "tries")

#: The schema of that struct as JSON, between the guard and the push; times are in ms.
SELECTOR_RESULT = "mature BIGINT, delay BIGINT, tries INT"

_WORD = re.compile(r"\w+")

#: The columns whose fields have the form `payload:a.b`.
_COLUMNS_WITH_FIELDS = ("payload", "state")


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


def to_column(expression: Any) -> Column:
    """Return the Column of an expression of a graph. Raises `GraphError` if it is invalid."""
    if isinstance(expression, Column):
        return expression
    if callable(expression):
        return _call(expression, getattr(expression, "__qualname__", repr(expression)))
    text = str(expression)
    if names_function(text):
        return _call(load_function(text.strip()), text)
    try:
        return F.expr(to_spark_sql(text)[0])
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


def to_spark_sql(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return SQL text with each `payload:a.b` and `state:a.b` in a form that all of Spark reads.

    Also return pairs of positions in the new text and in the old one, in order. The positions of a
    pair mean the same part.
    """
    try:
        tokens = tokenize(text, read="databricks")
    except TokenError:
        return text, [(0, 0)]  # Spark has the better error
    converted, copied, index, positions = "", 0, 0, [(0, 0)]
    while index < len(tokens):
        end, keys = _field_at(tokens, index)
        if keys:
            converted += text[copied : tokens[index].start]
            positions.append((len(converted), tokens[index].start))
            converted += _field_sql(tokens[index].text.lower(), keys)
            copied = tokens[end - 1].end + 1
            positions.append((len(converted), copied))
        index = max(end, index + 1)
    return converted + text[copied:], positions


def _field_at(tokens: list[Token], index: int) -> tuple[int, list[str | int]]:
    """Return the end and the keys of a field such as `payload:a.b[0]['c']` that begins here.

    There are no keys if no field begins here.
    """

    def kind(position: int) -> TokenType | None:
        return tokens[position].token_type if position < len(tokens) else None

    first = tokens[index].text.lower() in _COLUMNS_WITH_FIELDS
    if not first or kind(index - 1 if index else len(tokens)) == TokenType.DOT or kind(index + 1) != TokenType.COLON:
        return index, []
    index += 2
    if kind(index) is None:
        return index, []
    keys: list[str | int] = [tokens[index].text]
    index += 1
    while True:
        if kind(index) == TokenType.DOT and kind(index + 1) is not None:
            keys.append(tokens[index + 1].text)
            index += 2
        elif kind(index) == TokenType.L_BRACKET and kind(index + 2) == TokenType.R_BRACKET:
            subscript = tokens[index + 1]
            keys.append(int(subscript.text) if subscript.token_type == TokenType.NUMBER else subscript.text)
            index += 3
        else:
            return index, keys


def _field_sql(column: str, keys: list[str | int]) -> str:
    """Return the SQL of a field, as text: of the payload, or of a value of the state."""
    if column == "payload":
        return f"try_variant_get({JSON_COLUMN}, {_quote('$' + _json_path(keys))}, 'string')"
    value = f"state[{_quote(str(keys[0]))}]"
    if len(keys) == 1:
        return value
    return f"try_variant_get(try_parse_json({value}), {_quote('$' + _json_path(keys[1:]))}, 'string')"


def _json_path(keys: list[str | int]) -> str:
    return "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" if _WORD.fullmatch(key) else f"[{_quote(key)}]"
        for key in keys
    )


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


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
            made = to_column(expression)
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
                part = F.round(part.cast("double") * 1000).cast("long")
        maximum = {"mature": MAX_TIME_MS, "delay": MAX_TIME_MS // 2, "tries": 2**31 - 1}[field.name]
        wrong = F.concat(F.lit(f"its {field.name} is "), part.cast("string"))
        checked = F.when(part.between(0, maximum) | part.isNull(), part).otherwise(F.raise_error(wrong))
        parts.append(checked.alias(field.name))
    return parts


def changed_payload(made: CompiledExpression) -> Column:
    """Return the new payload as JSON text, or NULL if it failed, or is not JSON."""
    text = null_on_error(made.text)
    return F.when(F.try_parse_json(text).isNotNull(), text)


def with_header(headers: Column, name: str, value: Column) -> Column:
    """Return the headers with one of them set."""
    others = F.map_filter(headers, lambda key, _: key != name)
    kept = F.when(F.map_contains_key(headers, name), others).otherwise(headers)
    return F.map_concat(kept, F.create_map(F.lit(name), value))


def changed_map(before: Column, made: Mapping[str, Column]) -> Column:
    """Return a map of texts with some entries set, or NULL if one of them failed.

    `made`: the new texts. An entry whose new value is NULL is removed.
    """
    # A value becomes `==text`, and NULL becomes `=`, so that NULL is only a failure.
    new = {
        name: null_on_error(F.concat(F.lit("="), F.coalesce(F.concat(F.lit("="), one), F.lit(""))))
        for name, one in made.items()
    }
    names = F.array(*map(F.lit, new))
    values = F.array(*(F.when(one != "=", F.substr(one, F.lit(3))) for one in new.values()))
    failed = F.exists(F.array(*new.values()), lambda one: one.isNull())
    kept = F.map_filter(before, lambda name, _: ~F.array_contains(names, name))
    both = F.map_concat(kept, F.map_from_arrays(names, values))
    return F.when(~failed, F.map_filter(both, lambda _, value: value.isNotNull()))
