"""Counts of messages that go through steps, kept in the store of their source for all programs.

These are statistics: if a process is killed, its last batch may not be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from spark_queue.runner.notes import check_version, note_value
from spark_queue.stores import open_store
from spark_queue.stores.base import Store

TRAFFIC_VERSION, READ_VERSIONS = 2, (1, 2)
TRAFFIC_PREFIX = "exchange/"

#: The bounds of the durations of hops (ms).
HOP_BOUNDS = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)

#: What rates are of: the batches that were counted within this time (ms).
RATE_MS = 60_000


@dataclass
class Traffic:
    """Counts of the messages that went through a step.

    `received`: messages read. `pushed`, `failed`: by destination (`ns/queue`), the copies that went
    there, and the messages on which its selector or its changes failed. `odd_hops`: messages whose
    header `x-hop-count` was not a number. For a link, `done`: messages that it committed, and
    `again`: messages that it rolled back. `milliseconds`: the duration of the batches, by Spark's
    names for their stages; `triggerExecution` is the total. `hops`: messages by outcome, as
    keuss-server names them (`ko`: a link rolled it back), and by the bound of the duration of their
    batch (`ok/250`, `ok/+Inf`), from its start to its end. `hop_milliseconds`: the sum of these
    durations, by outcome. `recent`: for each count within
    RATE_MS its time (ms since 1970), and the messages received and pushed.
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
    hops: Counter[str] = field(default_factory=Counter)
    hop_milliseconds: Counter[str] = field(default_factory=Counter)
    recent: list[list[int]] = field(default_factory=list, compare=False)  # counts are equal whenever they were made

    def add_hops(self) -> None:
        """Set `hops` and `hop_milliseconds` of a single batch, from its other counts."""
        lost = {"ko": self.again, "no-route": self.no_route, "too-many-hops": self.too_many_hops}
        took = self.milliseconds["triggerExecution"]
        bound = next((str(one) for one in HOP_BOUNDS if took <= one), "+Inf")
        for outcome, messages in {"ok": self.received - sum(lost.values()), **lost}.items():
            if messages:
                self.hops[f"{outcome}/{bound}"] += messages
                self.hop_milliseconds[outcome] += messages * took

    def rates(self, now: int) -> dict[str, float]:
        """Return the messages received and pushed per second, within RATE_MS before `now` (ms)."""
        recent = [one for one in self.recent if one[0] > now - RATE_MS]
        return {
            name: round(sum(one[number] for one in recent) * 1000 / RATE_MS, 3)
            for number, name in enumerate(("received", "pushed"), 1)
        }

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
        total = (Traffic() if value is None else _from_note(step, value)) + traffic
        now = store.now()
        total.recent = [one for one in total.recent if one[0] > now - RATE_MS]
        total.recent.append([now, traffic.received, traffic.pushed.total()])
        facts = {name: dict(one) if isinstance(one, Counter) else one for name, one in vars(total).items()}
        return note_value(TRAFFIC_VERSION, facts)

    with open_store(url) as store:
        return _from_note(step, store.change_note(TRAFFIC_PREFIX + step, add))


def load_traffic(url: str) -> dict[str, Traffic]:
    """Return the counts of steps whose source is in the store at `url`. Raises `StoreError`."""
    with open_store(url) as store:
        notes = {key.removeprefix(TRAFFIC_PREFIX): note for key, note in store.notes(TRAFFIC_PREFIX).items()}
    return {step: _from_note(step, note.value) for step, note in notes.items()}


def traffic_of(store: Store, step: str) -> Traffic | None:
    """Return the counts of a step whose source is in this store, if there are any.

    Raises `StoreError`.
    """
    note = store.note(TRAFFIC_PREFIX + step)
    return None if note is None else _from_note(step, note.value)


def reset_traffic(url: str, step: str) -> None:
    """Reset the counts of a step to zero."""
    with open_store(url) as store:
        store.change_note(TRAFFIC_PREFIX + step, lambda _: None)


def _from_note(step: str, value: Mapping[str, Any]) -> Traffic:
    check_version(value, READ_VERSIONS, f"counts of exchange {step!r}")
    facts: dict[str, Any] = {key: Counter(one) if isinstance(one, Mapping) else one for key, one in value.items()}
    return Traffic(**{key: one for key, one in facts.items() if key not in ("v", "by")})
