"""The tree of an expression, as Spark's parser returns it. Only listed classes are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject

from spark_queue.errors import GraphError
from spark_queue.graph.sql_functions import words
from spark_queue.graph.sql_limits import MAX_NESTING

#: Most parts of an expression. Each takes a millisecond to read.
MAX_PARTS = 10_000

_CATALYST = "org.apache.spark.sql.catalyst."

#: Classes of Spark with a value or names that decide; their reader is below.
FUNCTION, LITERAL, CAST, LAMBDA = (
    "analysis.UnresolvedFunction", "expressions.Literal", "expressions.Cast", "expressions.LambdaFunction",
)  # fmt: skip
ATTRIBUTE, VARIABLE = "analysis.UnresolvedAttribute", "expressions.UnresolvedNamedLambdaVariable"
EXTRACT, STRUCT = "analysis.UnresolvedExtractValue", "expressions.CreateNamedStruct"

_NAMED = frozenset((FUNCTION, ATTRIBUTE, VARIABLE))

#: LIKE with several patterns, which the parser has already evaluated.
_MANY_PATTERNS = frozenset(f"expressions.{one}" for one in ("LikeAny", "LikeAll", "NotLikeAny", "NotLikeAll"))

#: Other classes, whose children are all that matters: operators, CASE, fields, collations.
_PLAIN = frozenset(
    f"expressions.{one}"
    for one in words("""
    Add Alias And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Collate Concat Divide EqualNullSafe EqualTo
    GreaterThan GreaterThanOrEqual ILike If In IntegralDivide IsNotNull IsNotUnknown$$anon$2 IsNull IsUnknown$$anon$1
    LessThan LessThanOrEqual Like Lower Multiply NamePlaceholder$ Not Or Overlay RLike Remainder SemiStructuredExtract
    ShiftLeft ShiftRight ShiftRightUnsigned StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract
    TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnresolvedCollation
""")
)
_LISTED = _NAMED | _MANY_PATTERNS | _PLAIN | {LITERAL, CAST, LAMBDA, EXTRACT, STRUCT}

#: What a user calls classes that are not listed.
_NOUNS = {
    "ScalarSubquery": "a query", "ListQuery": "a query", "Exists": "a query", "InSubquery": "a query",
    "UnresolvedStar": "*", "UnresolvedRegex": "a regular expression of column names",
    "NamedArgumentExpression": "a named argument", "NamedParameter": "a parameter", "PosParameter": "a parameter",
    "ExpressionWithUnresolvedIdentifier": "IDENTIFIER()", "AggregateExpression": "an aggregate",
    "WindowExpression": "a window", "UnresolvedWindowExpression": "a window",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SqlNode:
    """A part of an expression.

    `kind`: its class in Spark, without the package. `names`: of a function, a column or a variable,
    by parts. `value`: of a literal, as Python has it, or text; of LIKE with several patterns, these
    in a tuple. `type`: of a cast, or of a literal that is no text, as Spark's
    JSON. `arguments`: how many of the last
    children are the variables of a lambda.
    """

    kind: str
    children: tuple[SqlNode, ...] = ()
    names: tuple[str, ...] = ()
    value: Any = None
    type: Any = None
    arguments: int = 0

    @property
    def function(self) -> str:
        """The name of a function in lower case; an empty text for anything else."""
        return self.names[0].lower() if self.kind == FUNCTION and len(self.names) == 1 else ""


def read_tree(expression: Any) -> SqlNode:
    """Return the tree of an expression in the JVM. Raises `GraphError` if a class is not listed."""
    return _Reader().read(expression, 1)


class _Reader:
    def __init__(self) -> None:
        self._parts = 0

    def read(self, one: Any, level: int) -> SqlNode:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise GraphError(f"must be of at most {MAX_PARTS:,} parts")
        if level > MAX_NESTING:
            raise GraphError(f"must be nested at most {MAX_NESTING} levels deep")
        name = one.getClass().getName()
        kind = name.removeprefix(_CATALYST)
        if not name.startswith(_CATALYST) or kind not in _LISTED:
            short = kind.rpartition(".")[2].partition("$")[0]
            noun = _NOUNS.get(short, f"{short} of Spark")
            raise GraphError(f"must be made of listed functions and operators, and {noun} is not one of them")
        facts: dict[str, Any] = {}
        if kind in _NAMED:
            facts["names"] = tuple(one.nameParts().mkString("\0").split("\0"))
        if kind == FUNCTION:
            _check_call(one, ".".join(facts["names"]))
        elif kind == LITERAL:
            facts["value"] = _value(one)
            if not isinstance(facts["value"], str):
                facts["type"] = json.loads(one.dataType().json())
            return SqlNode(kind, **facts)
        elif kind == CAST:
            facts["type"] = json.loads(one.dataType().json())
        elif kind in _MANY_PATTERNS:
            facts["value"] = tuple(one.patterns().mkString("\0").split("\0"))
        children = one.children()
        read = tuple(self.read(children.apply(index), level + 1) for index in range(children.size()))
        if kind == LAMBDA:
            facts["arguments"] = one.arguments().size()
        return SqlNode(kind, read, **facts)


def _check_call(call: Any, name: str) -> None:
    """Raise `GraphError` if a call has more than arguments."""
    for noun, there in (
        ("DISTINCT", call.isDistinct()),
        ("FILTER", not call.filter().isEmpty()),
        ("ORDER BY", not call.orderingWithinGroup().isEmpty()),
        ("IGNORE NULLS", str(call.ignoreNulls()) not in ("False", "None")),
        ("internal names", call.isInternal()),
    ):
        if there:
            raise GraphError(f"must be computed from one message alone, and {name}() has {noun}")


def _value(literal: Any) -> Any:
    value = literal.value()
    return str(value.toString()) if isinstance(value, JavaObject) else value
