"""How large the results of functions and operators are, by the sizes of their arguments.

A function that is not here returns at most as much as it gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from spark_queue.graph.patterns import shortest_match
from spark_queue.graph.sql_functions import words
from spark_queue.runner.sql.size import (
    INFINITE,
    Size,
    between,
    fixed,
    largest,
    scaled,
    text_of,
    total,
)
from spark_queue.runner.sql.tree import LITERAL, SqlNode

Grow = Callable[[SqlNode, list[Size]], Size]


def _part(parts: list[Size], index: int, default: Size) -> Size:
    return parts[index] if index < len(parts) else default


def _factor(factor: float) -> Grow:
    return lambda node, parts: scaled(total(parts), factor)


def _count(one: Size) -> float:
    """Return how often something happens by a number: a negative one counts as 0."""
    return max(0.0, one.high)


def _repeat(node: SqlNode, parts: list[Size]) -> Size:
    return scaled(parts[0], _count(parts[1]))


def _array_repeat(node: SqlNode, parts: list[Size]) -> Size:
    made = scaled(total(parts[:1]), _count(parts[1]))
    return replace(made, items=_count(parts[1]), element=parts[0])


def _start(node: SqlNode, parts: list[Size]) -> Size:
    """Return the size of a part of a text, or of binary: a character has at most four bytes."""
    most = 4 * _count(parts[-1]) if len(parts) == 3 or node.function in ("left", "right") else INFINITE
    return text_of(most) if most < parts[0].top else parts[0]


def _space(node: SqlNode, parts: list[Size]) -> Size:
    return text_of(_count(parts[0]))


def _pad(node: SqlNode, parts: list[Size]) -> Size:
    return text_of(4 * _count(parts[1]))


def _sequence(node: SqlNode, parts: list[Size]) -> Size:
    """Return the size of a sequence of whole numbers. One of times may have any number of them."""
    step = node.children[2] if len(node.children) > 2 else None
    low, high = min(parts[0].low, parts[1].low), max(parts[0].high, parts[1].high)
    whole = step is None or step.type in ("byte", "short", "integer", "long")
    items = high - low + 1 if whole else INFINITE
    return fixed(8 * items, items=items, element=replace(fixed(8), low=low, high=high))


def _replace(node: SqlNode, parts: list[Size]) -> Size:
    """Return the size of a text in which each match is replaced."""
    old, new = node.children[1], _part(parts, 2, fixed(0))
    searched = old.value if old.kind == LITERAL and isinstance(old.value, str) else ""
    length = len(searched) if node.function == "replace" else shortest_match(searched)
    if node.function == "replace":
        return scaled(parts[0], max(1.0, new.top / max(length, 1)))
    literal = node.children[2] if len(node.children) > 2 else None
    groups = len(re.findall(r"\$", str(literal.value))) if literal is not None and literal.kind == LITERAL else 0
    grown = new.top / max(length, 1)
    return scaled(parts[0], max(1.0, grown + (length == 0)) + groups, new.top)


def _array_insert(node: SqlNode, parts: list[Size]) -> Size:
    position = max(abs(parts[1].low), abs(parts[1].high))
    return replace(total([parts[0], parts[2], fixed(8 * position)]), items=parts[0].items + position)


def _concat_ws(node: SqlNode, parts: list[Size]) -> Size:
    items = sum(max(1.0, one.items if one.element else 1.0) for one in parts[1:])
    return total([*parts[1:], scaled(parts[0], max(items, 1))])


def _array_join(node: SqlNode, parts: list[Size]) -> Size:
    return total([parts[0], *(scaled(one, max(parts[0].items, 1)) for one in parts[1:])])


def _split(node: SqlNode, parts: list[Size]) -> Size:
    return replace(parts[0], items=parts[0].top, element=replace(parts[0], items=0))


def _parsed(node: SqlNode, parts: list[Size]) -> Size:
    """Return the size of a value of JSON or CSV: an element takes two bytes at least."""
    element = replace(parts[0], items=parts[0].top / 2, low=-INFINITE, high=INFINITE)
    return replace(element, element=element)


def _flatten(node: SqlNode, parts: list[Size]) -> Size:
    inner = parts[0].inner
    return replace(parts[0], items=parts[0].items * max(inner.items, 1), element=inner.element)


def _format(node: SqlNode, parts: list[Size]) -> Size:
    """Return the size of a text by a format such as `%10s`: it names widths, and arguments."""
    text = str(node.children[0].value)
    widths = sum(float(one) for one in re.findall(r"\d{1,300}", text))
    return text_of(total(parts).top * (1 + text.count("%")) + widths)


def _digits(node: SqlNode, parts: list[Size]) -> Size:
    return text_of(1_000 + _count(parts[1]))


def _digest(node: SqlNode, parts: list[Size]) -> Size:
    return text_of(128)


def _counted(node: SqlNode, parts: list[Size]) -> Size:
    return between(-1, 8 * max(parts[0].items, parts[0].top))  # bits, at most


def _least(node: SqlNode, parts: list[Size]) -> Size:
    return replace(largest(parts), high=min(one.high for one in parts))


def _greatest(node: SqlNode, parts: list[Size]) -> Size:
    return replace(largest(parts), low=max(one.low for one in parts))


def _plus(node: SqlNode, parts: list[Size]) -> Size:
    return between(parts[0].low + parts[1].low, parts[0].high + parts[1].high)


def _minus(node: SqlNode, parts: list[Size]) -> Size:
    return between(parts[0].low - parts[1].high, parts[0].high - parts[1].low)


def _product(node: SqlNode, parts: list[Size]) -> Size:
    one, other = parts
    products = [0 if 0 in (a, b) else a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return between(min(products), max(products))


def _modulo(node: SqlNode, parts: list[Size]) -> Size:
    most = max(abs(parts[1].low), abs(parts[1].high))
    return between(-most, most)


def _as_number(node: SqlNode, parts: list[Size]) -> Size:
    """Return the size after a cast, which may overflow, or after a change of the sign."""
    most = max(abs(parts[0].low), abs(parts[0].high))
    return replace(parts[0], low=-most, high=most)


def _magnitude(node: SqlNode, parts: list[Size]) -> Size:
    return replace(_as_number(node, parts), low=0)


def _array(node: SqlNode, parts: list[Size]) -> Size:
    return replace(total(parts), items=len(parts), element=largest(parts))


GROWING: dict[str, Grow] = {
    "abs": _magnitude,
    "array": _array,
    "array_insert": _array_insert,
    "array_join": _array_join,
    "array_repeat": _array_repeat,
    "base64": _factor(1.4),
    "concat_ws": _concat_ws,
    "encode": _factor(4),
    "flatten": _flatten,
    "format_number": _digits,
    "format_string": _format,
    "from_csv": _parsed,
    "from_json": _parsed,
    "greatest": _greatest,
    "hex": _factor(2),
    "least": _least,
    "lpad": _pad,
    "map": _array,
    "minus": _minus,
    "plus": _plus,
    "printf": _format,
    "product": _product,
    "randstr": _space,
    "regexp_replace": _replace,
    "repeat": _repeat,
    "replace": _replace,
    "rpad": _pad,
    "sentences": _split,
    "sequence": _sequence,
    "space": _space,
    "split": _split,
    "str_to_map": _split,
    "to_csv": _factor(2),
    "to_json": _factor(2),
    "translate": _factor(2),
    "try_variant_get": _parsed,
    "url_encode": _factor(3),
    "variant_get": _parsed,
    **dict.fromkeys(("array_size", "bit_length", "cardinality", "char_length", "character_length"), _counted),
    **dict.fromkeys(("json_array_length", "len", "length", "octet_length", "size"), _counted),
    **dict.fromkeys(("bigint", "cast", "int", "negative", "positive", "smallint", "tinyint"), _as_number),
    **dict.fromkeys(("left", "right", "substr", "substring"), _start),
    **dict.fromkeys(("bin", "conv", "md5", "sha", "sha1", "sha2", "uuid"), _digest),
    **dict.fromkeys(("mod", "pmod"), _modulo),
}

#: Operators that count as one of these functions.
OPERATORS = {
    "expressions.Add": "plus",
    "expressions.CaseWhen": "case",
    "expressions.Cast": "cast",
    "expressions.Multiply": "product",
    "expressions.Remainder": "mod",
    "expressions.Substring": "substring",
    "expressions.Subtract": "minus",
    "expressions.UnaryMinus": "negative",
    "expressions.UnaryPositive": "positive",
    **dict.fromkeys(
        (f"expressions.{one}" for one in words("""
         And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Divide EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual
         ILike In IntegralDivide IsNotNull IsNotUnknown$$anon$2 IsNull IsUnknown$$anon$1 LessThan LessThanOrEqual Like
         LikeAll LikeAny Not NotLikeAll NotLikeAny Or RLike ShiftLeft ShiftRight ShiftRightUnsigned StringLocate
         TimestampAdd TimestampDiff
         """)),
        "scalar",
    ),
}  # fmt: skip

#: Functions that return one of their arguments, and those that return a number, a time or so.
CHOICES = words("case coalesce if iff ifnull nullif nvl nvl2 when")
SCALARS = words("""
    scalar array_contains array_position arrays_overlap ascii between bit_count bit_get boolean cbrt ceil ceiling
    contains crc32 date double endswith equal_null exists find_in_set float floor forall getbit hash ilike instr
    is_valid_utf8 isnan isnotnull isnull levenshtein like locate luhn_check map_contains_key position regexp
    regexp_count regexp_instr regexp_like rlike round shiftleft shiftright sign startswith timestamp
    to_date to_timestamp typeof unix_millis unix_seconds unix_timestamp xxhash64
""")
