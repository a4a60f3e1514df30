"""Filters that dead letters and messages of a history have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from spark_queue.admin.common import Moment, to_moment
from spark_queue.errors import OptionError
from spark_queue.messages.dead_letter import ERROR_HEADER
from spark_queue.stores.base import Store
from spark_queue.stores.types import Condition


class Filters(TypedDict, total=False):
    """Filters as they are given: see `DeadLetterFilters` and `HistoryFilters`."""

    ids: Collection[str] | None
    reason: str | None
    since: Moment | None
    until: Moment | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class CheckedFilters:
    """Checked `Filters`: `ids` as a condition for a store, and `reason` in lower case."""

    where: list[Condition]
    reason: str
    since: datetime | None
    until: datetime | None
    limit: int | None

    def match_reason(self, headers: Mapping[str, str]) -> bool:
        """Return whether the error in the headers of a message contains `reason`."""
        return self.reason in headers.get(ERROR_HEADER, "").lower()


def check_filters(store: Store, filters: Filters) -> CheckedFilters:
    """Check filters.

    Raises `OptionError` for a wrong value, and `TypeError` for an unknown filter.
    """
    if unknown := filters.keys() - Filters.__annotations__.keys():
        raise TypeError(f"unknown filter {', '.join(sorted(unknown))}")
    ids, limit = filters.get("ids"), filters.get("limit")
    if limit is not None and limit < 1:
        raise OptionError(f"limit must be 1 or more, not {limit}", option="limit")
    return CheckedFilters(
        [] if ids is None else [Condition("id", "in", (ids,) if isinstance(ids, str) else tuple(ids))],
        (filters.get("reason") or "").lower(),
        to_moment(store, "since", filters.get("since")),
        to_moment(store, "until", filters.get("until")),
        limit,
    )
