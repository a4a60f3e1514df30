"""Conditions of a look, checked in Python, and what they say about the places to look at."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spark_queue.errors import OptionError
from spark_queue.messages.schema import HISTORY_FIELDS
from spark_queue.stores.types import Condition, View

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, among: value in among,
}


#: How many ids a step of a scan looks up at once; with more of them, it walks through the index.
MAX_NAMED_IDS = 10_000


class DueRange(NamedTuple):
    """The moments (ms) from `first` to `last` at which messages may be due; `None`: any."""

    first: int | None = None
    last: int | None = None


def check_conditions(where: Sequence[Condition], view: View) -> None:
    """Raise `OptionError` for a condition on a column of the history in another view."""
    for one in where:
        if one.column in HISTORY_FIELDS.names and view != "history":
            raise OptionError(f"only the history has a column {one.column!r}: set view=history", option="view")


def meets(where: Sequence[Condition], column: str, value: Any) -> bool:
    """Return whether a value meets all conditions on its column. `None` meets none."""
    return all(value is not None and COMPARE[one.op](value, one.value) for one in where if one.column == column)


def due_range(where: Sequence[Condition]) -> DueRange:
    """Return the range of due times outside of which no message meets the conditions."""
    first: int | None = None
    last: int | None = None
    for one in where:
        if one.column != "mature":
            continue
        moments = [int(value) for value in one.values] or [0]  # nothing is in an empty list
        if one.op in ("=", "in", ">", ">="):
            first = min(moments) if first is None else max(first, min(moments))
        if one.op in ("=", "in", "<", "<="):
            last = max(moments) if last is None else min(last, max(moments))
    return DueRange(first, last)


def named_ids(where: Sequence[Condition]) -> set[str] | None:
    """Return the only ids that can meet the conditions; `None` if no condition names ids."""
    named = [set(map(str, one.values)) for one in where if one.column == "id" and one.op in ("=", "in")]
    return set.intersection(*named) if named else None
