"""Write the rules of thumb of docs/benchmarks.md: what to set when, and how many times as fast.

    python bench/rules.py

Their numbers are ratios of other tables of the page. `--docs` of a benchmark with such a table
renews them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from charts import NAMES, rates, stores, tables
from report import DEFAULT_HEAD, PAGE, Table, part, piped, renew
from ways import DRAIN, PUSH

from spark_queue.options.values import AT_LEAST_ONCE, EXACTLY_ONCE


class Numbers:
    """The numbers of the tables of a page, for one store."""

    def __init__(self, store: str, page: Path) -> None:
        self._store, self._page = store, page

    def rate(self, what: str, who: str) -> float:
        """Return the messages per second of a way. `what`: PUSH, or DRAIN with default options."""
        (table,) = (table for table in stores(self._page)[self._store] if table[0][0] == what)
        return rates(table, DEFAULT_HEAD[0] if what == DRAIN else "messages/s")[who]

    def best_size(self) -> float:
        """Return the rate of a whole drain with the best fixed size, relative to `auto`."""
        _, section = re.split(rf"^### {self._store},.*$", part("sizes", self._page), flags=re.M)
        table, *_ = tables(section)
        auto, *fixed = rates(table, "whole (messages/s)").values()
        return max(fixed) / auto

    def hop(self, column: str) -> float:
        """Return how many times as fast a message is with `checkpoint_conf`."""
        (table,) = tables(part("hops", self._page))
        at = table[0].index(column)
        default, ours = (float(row[at]) for row in table[1:] if row[0] == self._store)
        return default / ours


@dataclass(frozen=True)
class Rule:
    """When to set what, and how many times as fast that is, by the numbers of a store."""

    when: str
    what: str
    times: Callable[[Numbers], float]


def faster(what: str, who: str, other: str) -> Callable[[Numbers], float]:
    """Return how many times as fast a way pushes or drains as another."""
    return lambda of: of.rate(what, who) / of.rate(what, other)


BUCKETS, SINGLE, TWICE = (
    f"Spark, {way}"
    for way in (f"buckets, {EXACTLY_ONCE}", f"2 partitions, {EXACTLY_ONCE}", f"2 partitions, {AT_LEAST_ONCE}")
)

RULES = (
    Rule("many messages are written at once", "`layout=bucket` in the write; pushes", faster(PUSH, BUCKETS, SINGLE)),
    Rule("", "the same; drains", faster(DRAIN, BUCKETS, SINGLE)),
    Rule("a message may come twice after a failure", "`delivery=at-least-once`; pushes", faster(PUSH, TWICE, SINGLE)),
    Rule("", "the same; drains", faster(DRAIN, TWICE, SINGLE)),
    Rule("a backlog and its best size are known", "`maxRecordsPerTrigger` to that size", Numbers.best_size),
    Rule(
        "messages trickle, and checkpoints lie on a local disk",
        "`checkpoint_conf()`; one query",
        lambda of: of.hop("query (s)"),
    ),
    Rule("", "the same; six exchanges", lambda of: of.hop("six hops (s)")),
)


def as_markdown(page: Path = PAGE) -> str:
    """Return the table of rules, with the numbers of this page."""
    names = list(stores(page))
    made: Table = [("when", "set", *(f"{NAMES[store]}, times as fast" for store in names))]
    for rule in RULES:
        times = (f"{rule.times(Numbers(store, page)):.1f}" for store in names)
        made.append((rule.when, rule.what, *times))
    return "\n".join(piped(made))


def renew_rules() -> None:
    """Renew the rules of the page."""
    renew("rules", as_markdown())


if __name__ == "__main__":
    renew_rules()
