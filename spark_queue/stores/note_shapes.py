"""The shape of each kind of note. A note of another shape is damaged: it is reported and not used.

A shape is a type, `None` for `null`, or one of several shapes. A dict must have its fields, except
those that end with "?". A list has its items, or any number of the first one if `...` follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Shape = Any


class Either(tuple[Shape, ...]):
    """A value that has one of these shapes."""


def _optional(shape: Shape) -> Either:
    return Either((shape, None))


_OWNER: Final = {"token": str, "host": str, "boot": str, "pid": int, "started": int, "until": int, "leaves?": bool}
_SEGMENTS: Final = [[str, int, int, _optional(int)], ...]
_ROWS: Final = Either((str, [str, ...], None))

_TRAFFIC: Final = {
    "batches?": int, "received?": int, "no_route?": int, "too_many_hops?": int, "odd_hops?": int, "done?": int,
    "again?": int, "pushed?": dict, "failed?": dict, "milliseconds?": dict, "by?": str,
}  # fmt: skip

#: By kind (from the key) and `v`. The reader of a note refuses other versions.
SHAPES: Final[Mapping[tuple[str, int | None], Shape]] = {
    ("consumer", 1): _OWNER,
    ("consumer", 2): {
        "number": int, "started": _optional([int, int]), "owner": _optional(_OWNER), "reserved?": [int, int],
        "deaths?": int, "ended?": bool,
    },
    ("query", 1): {"consumer": str, "number?": int, "batch?": _optional(str)},
    ("failing", 1): {
        "seq": Either((int, str)), "runs": int, "alone?": int, "run?": _optional(str), "error?": _optional(str),
    },
    ("reading", 1): {"batch": str, "run": int, "tasks?": int, "rows?": int},
    ("failure", 1): {"run": str, "error": str},
    ("settled", None): {"rows": int},
    ("history", 1): {"history": int, "dead?": str},
    ("layout", 1): {"size": int, "compression": str},
    ("event-origin", 1): {"key": str},
    ("ledger", 1): {
        "batch": int, "stages": [str, ...], "id?": str, "members?": dict, "rows?": _ROWS, "rows_before?": _ROWS,
    },
    ("written", 1): {"rows": str},
    ("exchange", 1): _TRAFFIC,
    ("exchange", 2): _TRAFFIC | {"hops?": dict, "hop_milliseconds?": dict, "recent?": [[int, int, int], ...]},
    ("exchange-run", 1): {"owner": _optional(_OWNER), "state": str, "error": _optional(str), "restarts": int},
    ("exchange-selectors", 1): {"at": int, "messages": int, "microseconds": list},
    ("declared-exchanges", 1): {
        "exchanges": dict, "removed": [{"name": str, "id": str, "declaration": dict, "stopped": bool}, ...],
    },
    ("log", 1): {
        "id": str, "first": int, "cleared": int, "number": int, "position": int, "segments": _SEGMENTS,
        "pages": [[int, int, int, int], ...],
        "sealing": _optional({"tag": str, "after": [str, ...], "by": _OWNER}),
        "stale": [[str, int], ...],
    },
    ("log page", 1): {"segments": _SEGMENTS},
}  # fmt: skip

_NAMES: Final = {bool: "true or false", dict: "an object", int: "a whole number", list: "a list", str: "text"}


def fault_of(key: str, value: object) -> str:
    """Return why the note of this key is damaged; empty if it is not."""
    if not isinstance(value, dict):
        return "it is not a JSON object"
    version = value.get("v")
    shape = SHAPES.get((_kind_of(key), version)) if isinstance(version, int | None) else None
    return _fault(value, shape, "it") if shape is not None else ""


def _kind_of(key: str) -> str:
    kind, *rest = key.split("/", 3)
    if kind != "queue":
        return kind
    kind = rest[1] if len(rest) > 1 else ""
    return "log page" if kind == "log" and len(rest) > 2 else kind


def _fault(value: object, shape: Shape, place: str) -> str:
    """Return how a value does not fit a shape; empty if it fits. `place` names it in the text."""
    match shape:
        case None:
            return "" if value is None else f"{place} is not null"
        case Either():
            faults = [_fault(value, one, place) for one in shape]
            return "" if "" in faults else faults[0]
        case dict():
            return _fault_of_fields(value, shape, place)
        case list():
            return _fault_of_items(value, shape, place)
        case _:
            right = isinstance(value, shape) and isinstance(value, bool) is (shape is bool)
            return "" if right else f"{place} is not {_NAMES[shape]}"


def _fault_of_fields(value: object, shape: Mapping[str, Shape], place: str) -> str:
    if not isinstance(value, dict):
        return f"{place} is not an object"
    for field, one in shape.items():
        name = field.removesuffix("?")
        if name in value:
            if fault := _fault(value[name], one, f"its {name}" if place == "it" else f"{place}.{name}"):
                return fault
        elif name == field:
            return f"{place} has no {name}"
    return ""


def _fault_of_items(value: object, shape: list[Shape], place: str) -> str:
    if not isinstance(value, list):
        return f"{place} is not a list"
    if shape[-1] is ... and _certainly_fit(value, shape[0]):
        return ""
    shapes = shape[:1] * len(value) if shape[-1] is ... else shape
    if len(value) != len(shapes):
        return f"{place} has {len(value)} items, not {len(shapes)}"
    faults = (
        _fault(one, item_shape, f"{place}[{row}]")
        for row, (one, item_shape) in enumerate(zip(value, shapes, strict=True))
    )
    return next(filter(None, faults), "")


def _certainly_fit(items: list[Any], shape: Shape) -> bool:
    """Return whether all items certainly fit a simple shape.

    It checks whole columns at a time, since the head of a log has 500 segments.
    """
    if not isinstance(shape, list):
        return set(map(type, items)) <= _types(shape)
    if not items or set(map(type, items)) != {list} or set(map(len, items)) != {len(shape)}:
        return not items
    columns = zip(*items, strict=True)
    return all(set(map(type, column)) <= _types(one) for column, one in zip(columns, shape, strict=True))


def _types(shape: Shape) -> set[type]:
    """Return the types of the values of a simple shape; none for another shape."""
    if isinstance(shape, Either):
        return set().union(*map(_types, shape))
    if shape is None:
        return {type(None)}
    return {shape} if isinstance(shape, type) else set()
