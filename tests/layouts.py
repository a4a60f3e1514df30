"""Stores that push in a layout, whatever is asked: as those of a layout that has buckets only."""

from __future__ import annotations

from typing import TypeVar

from spark_queue.messages.buckets import Layout
from spark_queue.stores.base import Store

S = TypeVar("S", bound=Store)


def use_layout(store: S, layout: Layout) -> S:
    """Let a store push in a layout from now on, and return it. Programs cannot do that: a queue has a policy."""
    kind = type(store)
    store.__class__ = type(kind.__name__, (kind,), {"default_layout": layout})
    return store
