"""The largest result of each part of an expression, computed from its tree.

A message is small, but an expression may repeat its payload a million times. That would end the
JVM, which runs all exchanges. So a part that may return more than `MAX_RESULT` is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from spark_queue.errors import GraphError
from spark_queue.runner.sql.growth import CHOICES, GROWING, OPERATORS, SCALARS
from spark_queue.runner.sql.size import INFINITE, NUMBER, Size, between, fixed, largest, text_of, total
from spark_queue.runner.sql.tree import ATTRIBUTE, EXTRACT, FUNCTION, LAMBDA, LITERAL, STRUCT, VARIABLE, SqlNode

#: The largest payload, and the largest result of a part of an expression (bytes).
MAX_PAYLOAD, MAX_RESULT = 16 << 20, 64 << 20

Scope = Mapping[str, Size]


def check_sizes(root: SqlNode, hidden: Iterable[str] = ()) -> None:
    """Raise `GraphError` if a part of an expression may return too much.

    `hidden`: further columns, each at most as large as a payload.
    """
    columns = {"payload": text_of(MAX_PAYLOAD), "tries": between(-(2**31), 2**31), "mature": NUMBER}
    columns |= dict.fromkeys(("headers", "state"), fixed(MAX_PAYLOAD, items=MAX_PAYLOAD))
    columns |= dict.fromkeys(("id", "queue"), text_of(1 << 10))
    columns |= dict.fromkeys(hidden, text_of(MAX_PAYLOAD))
    _measure(root, columns)


def _measure(node: SqlNode, scope: Scope) -> Size:
    """Return the size of a part. Raises `GraphError` if it is too large."""
    made = _size_of(node, scope)
    if made.top > MAX_RESULT:
        what = f"{node.function}()" if node.function else "a part of it"
        found = "any number of bytes" if math.isinf(made.top) else f"{made.top / (1 << 20):,.0f} MB"
        raise GraphError(
            f"must return at most {MAX_RESULT >> 20} MB at each step, and {what} may return {found} for a payload of "
            f"{MAX_PAYLOAD >> 20} MB: repeat fewer times, with a literal or least(…, 100) as the number"
        )
    return made


def _size_of(node: SqlNode, scope: Scope) -> Size:
    if node.kind == LITERAL:
        return _literal(node)
    if node.kind in (ATTRIBUTE, VARIABLE):
        found = scope.get(node.names[0].lower(), NUMBER)
        return found if len(node.names) == 1 else found.inner
    if any(one.kind == LAMBDA for one in node.children):
        return _LAMBDAS.get(node.function, _array_like)(node, scope)
    parts = [_measure(one, scope) for one in node.children]
    if node.kind == EXTRACT:
        return parts[0].inner
    if node.kind == STRUCT:
        return total(parts[1::2])
    name = node.function if node.kind == FUNCTION else OPERATORS.get(node.kind, "")
    if name in GROWING:
        return GROWING[name](node, parts)
    if name in CHOICES:
        return largest(parts)
    if name in SCALARS:
        return NUMBER
    return parts[0] if len(parts) == 1 and node.kind != FUNCTION else total(parts)


def _literal(node: SqlNode) -> Size:
    if isinstance(node.value, str):
        is_number = re.fullmatch(r"-?\d{1,300}(\.\d*)?", node.value) is not None
        known = {"low": float(node.value), "high": float(node.value)} if is_number else {}
        return fixed(len(node.value.encode()), items=len(node.value), **known)
    if isinstance(node.value, bytes | bytearray):
        return fixed(len(node.value))
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return between(node.value, node.value)
    return between(0, 0) if node.value is None else NUMBER


# --- lambdas --------------------------------------------------------------------------------------


def _names(function: SqlNode) -> list[str]:
    """Return the variables of a lambda."""
    return [one.names[0].lower() for one in function.children[1:]]


def _apply(function: SqlNode, scope: Scope, sizes: list[Size]) -> Size:
    """Return the size of the result of a lambda. `sizes`: those of its variables, in order.

    Raises `GraphError` if it is too large.
    """
    names = _names(function)
    if len(names) > len(sizes):
        raise GraphError(f"must have lambdas with at most {len(sizes)} variables here")
    bound = {
        name: replace(size, base=0, times={name: 1}, element=size.element)
        for name, size in zip(names, sizes, strict=False)
    }
    return _measure(function.children[0], {**scope, **bound})


def _mapped(source: Size, function: SqlNode, scope: Scope, variables: list[Size]) -> Size:
    """Return the size of the results of a lambda for all elements of an array or a map.

    `variables`: those of the lambda, without the index that it may have at the end. Raises
    `GraphError` if one of them is too large.
    """
    made = _apply(function, scope, [*variables, between(0, source.items)])
    items, own = source.items, _names(function)
    base, times = made.base * items, dict[str, float]()
    for name, factor in made.times.items():
        if name in own:  # all elements together are the array
            base += factor * source.top
        else:
            times[name] = factor * items
    outer = sum(factor * scope[name].top for name, factor in times.items())
    top = min(made.top * items, base + outer) if items else 0
    return Size(top, base, times, items=items, element=replace(made, times={}, base=made.top))


def _transform(node: SqlNode, scope: Scope) -> Size:
    source = _measure(node.children[0], scope)
    return _mapped(source, node.children[1], scope, [source.inner])


def _transform_map(node: SqlNode, scope: Scope) -> Size:
    source = _measure(node.children[0], scope)
    return total([source, _mapped(source, node.children[1], scope, [source.inner] * 2)])


def _array_like(node: SqlNode, scope: Scope) -> Size:
    """Return the size of a part of an array or a map, as `filter` returns.

    Raises `GraphError` if a part is too large.
    """
    parts = [_measure(one, scope) for one in node.children if one.kind != LAMBDA]
    source = largest(parts)
    for one in node.children:
        if one.kind == LAMBDA:
            _apply(one, scope, [source.inner] * 2)
    return source


def _test(node: SqlNode, scope: Scope) -> Size:
    _array_like(node, scope)
    return NUMBER


def _zipped(node: SqlNode, scope: Scope) -> Size:
    parts = [_measure(one, scope) for one in node.children if one.kind != LAMBDA]
    source, inner = total(parts), [one.inner for one in parts]
    keys = [largest(inner)] if node.function == "map_zip_with" else []
    return total([source, _mapped(source, node.children[-1], scope, [*keys, *inner])])


def _fold(node: SqlNode, scope: Scope) -> Size:
    """Return the size of a fold.

    Raises `GraphError` if its accumulator grows from one element to the next.
    """
    source, start, merge = _measure(node.children[0], scope), _measure(node.children[1], scope), node.children[2]
    size = replace(start, low=-INFINITE, high=INFINITE)
    if merge.kind == LAMBDA:
        for _ in range(2):
            made = _apply(merge, scope, [size, source.inner])
            grows = made.top > size.top
            size = replace(largest([size, replace(made, times={}, base=made.top)]), low=-INFINITE, high=INFINITE)
        if grows:
            raise GraphError(f"must not grow the accumulator of {node.function}() with each element")
    size = replace(size, times={}, base=size.top)
    last = node.children[3] if len(node.children) > 3 else None
    return size if last is None or last.kind != LAMBDA else _apply(last, scope, [size])


_LAMBDAS: dict[str, Callable[[SqlNode, Scope], Size]] = {
    "aggregate": _fold,
    "exists": _test,
    "forall": _test,
    "map_zip_with": _zipped,
    "reduce": _fold,
    "transform": _transform,
    "transform_keys": _transform_map,
    "transform_values": _transform_map,
    "zip_with": _zipped,
}
