"""Counts of messages that go through steps, kept in the store of their source for all programs.

These are statistics: if a process is killed, its last batch may not be counted.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from spark_queue.errors import StoreError
from spark_queue.stores import open_store

TRAFFIC_VERSION = 1
TRAFFIC_PREFIX = "exchange/"


@dataclass
class Traffic:
    """Counts of the messages that went through a step.

    `received`: messages read. `pushed`, `failed`: by destination (`ns/queue`), the copies that went
    there, and the messages on which its selector or its changes failed. `odd_hops`: messages whose
    header `x-hop-count` was not a number. For a link, `done`: messages that it committed, and
    `again`: messages that it rolled back. `milliseconds`: the duration of the batches, by Spark's
    names for their stages; `triggerExecution` is the total.
    """

    batches: int = 0
    received: int = 0
    pushed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    no_route: int = 0
    too_many_hops: int = 0
    odd_hops: int = 0
    done: int = 0
    again: int = 0
    milliseconds: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Traffic) -> Traffic:
        total = deepcopy(self)
        for name, more in vars(other).items():
            mine = getattr(total, name)
            if isinstance(mine, Counter):
                mine.update(more)  # a sum of Counters would drop zeros
            else:
                setattr(total, name, mine + more)
        return total

    def __bool__(self) -> bool:
        return self.batches > 0


def add_traffic(url: str, step: str, traffic: Traffic) -> Traffic:
    """Add traffic to the counts of a step, and return the sum. Raises `StoreError`."""

    def add(value: dict[str, Any] | None) -> dict[str, Any]:
        total = traffic if value is None else _from_note(step, value) + traffic
        facts = {name: dict(one) if isinstance(one, Counter) else one for name, one in vars(total).items()}
        # If a reply is lost, `set_note` finds its write by the value, which must be unique.
        return facts | {"v": TRAFFIC_VERSION, "by": uuid.uuid4().hex}

    with open_store(url) as store:
        return _from_note(step, store.change_note(TRAFFIC_PREFIX + step, add))


def load_traffic(url: str) -> dict[str, Traffic]:
    """Return the counts of steps whose source is in this store, by name. Raises `StoreError`."""
    with open_store(url) as store:
        notes = {key.removeprefix(TRAFFIC_PREFIX): note for key, note in store.notes(TRAFFIC_PREFIX).items()}
    return {step: _from_note(step, note.value) for step, note in notes.items()}


def reset_traffic(url: str, step: str) -> None:
    """Reset the counts of a step to zero."""
    with open_store(url) as store:
        store.change_note(TRAFFIC_PREFIX + step, lambda _: None)


def _from_note(step: str, value: Mapping[str, Any]) -> Traffic:
    facts: dict[str, Any] = {key: Counter(one) if isinstance(one, Mapping) else one for key, one in value.items()}
    facts.pop("by", None)
    if facts.pop("v", None) != TRAFFIC_VERSION:
        raise StoreError(
            f"the statistics of exchange {step!r} have version {value.get('v')!r}, this version of spark_queue "
            f"reads {TRAFFIC_VERSION}: upgrade spark_queue",
            exchange=step,
        )
    return Traffic(**facts)
