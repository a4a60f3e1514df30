"""The parts that an expression of a file or a caller may have. All others are refused.

It runs before Spark analyses the expression, since analysis already computes constants. What Spark
computes while it analyses, such as schemas and formats, must be literals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from spark_queue.errors import GraphError, did_you_mean
from spark_queue.graph.patterns import pattern_mistake
from spark_queue.graph.sql_functions import FUNCTIONS, words
from spark_queue.runner.sql.tree import ATTRIBUTE, CAST, FUNCTION, LAMBDA, LITERAL, STRUCT, VARIABLE, SqlNode

#: The columns of a message, and names without parentheses that Spark reads as functions.
COLUMNS = frozenset(("id", "queue", "payload", "headers", "state", "mature", "tries"))
_NAMES = COLUMNS | {"current_date", "current_time", "current_timestamp", "localtimestamp"}

#: Functions that take lambdas.
HIGHER_ORDER = words("""
    aggregate array_sort exists filter forall map_filter map_zip_with reduce transform transform_keys transform_values
    zip_with
""")

#: Arguments that must be literals, by function: the first one has number 0, `*` is any other one.
_LITERAL_ARGUMENTS = {
    "collate": "1", "convert_timezone": "", "date_format": "1", "date_part": "0", "date_trunc": "0", "datepart": "0",
    "extract": "0", "format_number": "1", "format_string": "0", "from_csv": "12", "from_json": "12",
    "from_unixtime": "1", "ilike": "12", "like": "12", "mask": "1234", "parse_url": "12", "printf": "0",
    "rand": "0", "randn": "0", "random": "0", "randstr": "01", "regexp": "1", "regexp_count": "1",
    "regexp_extract": "1", "regexp_extract_all": "1", "regexp_instr": "1", "regexp_like": "1", "regexp_replace": "1",
    "regexp_substr": "1", "rlike": "1", "schema_of_csv": "01", "schema_of_json": "01", "shuffle": "1", "split": "1",
    "str_to_map": "12", "to_binary": "1", "to_char": "1", "to_csv": "1", "to_date": "1", "to_json": "1",
    "to_number": "1", "to_timestamp": "1", "to_timestamp_ltz": "1", "to_timestamp_ntz": "1", "to_unix_timestamp": "1",
    "to_varchar": "1", "trunc": "1", "try_parse_url": "12", "try_to_binary": "1", "try_to_date": "1",
    "try_to_number": "1", "try_to_timestamp": "1", "try_variant_get": "12", "uniform": "012", "unix_timestamp": "1",
    "variant_get": "12",
}  # fmt: skip

#: Arguments that are regular expressions, by function.
_PATTERNS = {
    **dict.fromkeys(
        ("regexp", "regexp_count", "regexp_extract", "regexp_extract_all", "regexp_instr", "regexp_like",
         "regexp_replace", "regexp_substr", "rlike", "split"),
        (1,),
    ),
    "str_to_map": (1, 2), "parse_url": (2,), "try_parse_url": (2,),
}  # fmt: skip

_ATOMIC = re.compile(
    r"(boolean|byte|short|integer|long|float|double|date|timestamp|timestamp_ntz|timestamp_ltz|binary|void|variant"
    r"|string( collate \w+)?|(var)?char\(\d+\)|decimal\(\d+, ?-?\d+\)|time\(\d\)|interval|interval \w+( to \w+)?)"
)


def check_tree(root: SqlNode, hidden: frozenset[str] = frozenset()) -> set[str]:
    """Check an expression, and return the names of the functions that it calls.

    `hidden`: further columns, whose names a caller cannot guess. Raises `GraphError`.
    """
    called: set[str] = set()
    for node, scope in _walk(root, frozenset()):
        if rule := _RULES.get(node.kind):
            rule(node, scope | hidden)
        if node.kind == FUNCTION:
            called.add(node.function)
        elif any(one.kind == LAMBDA for one in node.children):
            raise GraphError("must have a lambda as an argument of a function only")
    if root.kind == LAMBDA:
        raise GraphError("must be an expression over the columns of a message, and a lambda is none")
    return called


def _walk(node: SqlNode, scope: frozenset[str]) -> Iterator[tuple[SqlNode, frozenset[str]]]:
    """Yield each part with the variables of lambdas that it sees."""
    yield node, scope
    children = node.children
    if node.kind == LAMBDA:
        split = len(children) - node.arguments
        scope |= {one.names[0].lower() for one in children[split:]}
        children = children[:split]
    for one in children:
        yield from _walk(one, scope)


def is_literal(node: SqlNode) -> bool:
    """Return whether a part is a literal, a negative number, or a map or an array of literals."""
    if node.kind == LITERAL:
        return True
    if node.kind == "expressions.UnaryMinus" or node.function in ("map", "array"):
        return all(map(is_literal, node.children))
    return False


# --- rules by class -------------------------------------------------------------------------------


def _check_function(node: SqlNode, scope: frozenset[str]) -> None:
    name, shown = node.function, ".".join(node.names)
    if name not in FUNCTIONS:
        hint = did_you_mean(shown.lower(), FUNCTIONS) or "; docs/exchanges.md lists them"
        raise GraphError(f"must be made of listed functions, and {shown}() is not one of them{hint}")
    literal = _LITERAL_ARGUMENTS.get(name, "")
    for number, one in enumerate(node.children):
        if (str(number) in literal or (name == "named_struct" and number % 2 == 0)) and not is_literal(one):
            raise GraphError(f"must have a literal as argument {number + 1} of {name}()")
        if one.kind == LAMBDA and name not in HIGHER_ORDER:
            raise GraphError(f"must not have a lambda as an argument of {name}()")
    for number in _PATTERNS.get(name, ()):
        if number < len(node.children):
            _check_pattern(node.children[number], f"{name}()")


def _check_pattern(node: SqlNode, where: str) -> None:
    if node.kind != LITERAL:
        raise GraphError(f"must have a literal as the pattern of {where}")
    if isinstance(node.value, str) and (mistake := pattern_mistake(node.value)):
        raise GraphError(f"must have {mistake}, in {where}")


def _check_regular(node: SqlNode, scope: frozenset[str]) -> None:
    _check_pattern(node.children[1], "RLIKE")


def _check_like(node: SqlNode, scope: frozenset[str]) -> None:
    if not is_literal(node.children[1]):
        raise GraphError("must have a literal as the pattern of LIKE")


def _check_attribute(node: SqlNode, scope: frozenset[str]) -> None:
    name = node.names[0]
    if name.lower() in scope or (name.lower() in _NAMES and name.isascii()):
        return
    hint = did_you_mean(name, sorted(COLUMNS)) or f"; there are {', '.join(sorted(COLUMNS))}"
    raise GraphError(f"must use columns of the message, and {name!r} is none{hint}")


def _check_struct(node: SqlNode, scope: frozenset[str]) -> None:
    for one in node.children[::2]:
        if one.kind not in (LITERAL, "expressions.NamePlaceholder$"):
            raise GraphError("must have literals as the names of the fields of a struct")


def _check_type(node: SqlNode, scope: frozenset[str]) -> None:
    if not is_builtin_type(node.type):
        raise GraphError("must cast to a type of Spark SQL")


def is_builtin_type(kind: Any) -> bool:
    """Return whether a type, as Spark's JSON, is one of SQL, with such types in it."""
    if isinstance(kind, str):
        return _ATOMIC.fullmatch(kind) is not None
    match kind.get("type"):
        case "struct":
            return all(is_builtin_type(one["type"]) for one in kind["fields"])
        case "array":
            return is_builtin_type(kind["elementType"])
        case "map":
            return is_builtin_type(kind["keyType"]) and is_builtin_type(kind["valueType"])
    return False


_RULES: dict[str, Callable[[SqlNode, frozenset[str]], None]] = {
    FUNCTION: _check_function,
    ATTRIBUTE: _check_attribute,
    VARIABLE: _check_attribute,
    CAST: _check_type,
    STRUCT: _check_struct,
    "expressions.RLike": _check_regular,
    "expressions.Like": _check_like,
    "expressions.ILike": _check_like,
}
