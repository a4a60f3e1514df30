"""Limits of the stores of a test: small chunks and short intervals, so that little shows much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any, TypeVar

from spark_queue.errors import DriverMissing
from spark_queue.stores import STORES, store_class
from spark_queue.stores.limits import StoreLimits

Test = TypeVar("Test", bound=Callable[..., Any])


def limits_of(url: str, **limits: Any) -> StoreLimits:
    """Return the limits of the store of a URL, with those of these values that it has.

    Raises `TypeError` for a limit that no store has.
    """
    known: set[str] = set()
    for scheme in STORES:
        with suppress(DriverMissing):
            known |= _names(store_class(f"{scheme}://").default_limits)
    if unknown := limits.keys() - known:
        raise TypeError(f"no store has the limits {', '.join(sorted(unknown))}")
    default = store_class(url).default_limits
    return replace(default, **{name: value for name, value in limits.items() if name in _names(default)})


def with_limits(**limits: Any) -> Callable[[Test], Test]:
    """Decorate a test: its stores have these limits, if their database has them."""

    def decorate(test: Test) -> Test:
        test.limits = limits  # type: ignore[attr-defined]
        return test

    return decorate


@contextmanager
def default_limits(**limits: Any) -> Iterator[None]:
    """Let stores that are made in the block have these limits, unless they are made with others.

    This is for stores that the package opens by their URL, in this process. Raises `TypeError` as
    `limits_of` does.
    """
    classes = {store_class(f"{scheme}://") for scheme in STORES if not STORES[scheme].variant_of}
    before = {one: one.default_limits for one in classes}
    for scheme in STORES:
        store_class(f"{scheme}://").default_limits = limits_of(f"{scheme}://", **limits)
    try:
        yield
    finally:
        for one, its in before.items():
            one.default_limits = its


def _names(limits: StoreLimits) -> set[str]:
    return {one.name for one in fields(limits)}
