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

from charts import NAMES, stores, tables
from report import PAGE, Table, part, piped, renew

from spark_queue.options.values import AT_LEAST_ONCE, EXACTLY_ONCE

RATE = "messages/s"
SINGLE, BUCKETS = "Spark, 2 partitions", "Spark, buckets"


class Numbers:
    """The numbers of the tables of a page, for one store."""

    def __init__(self, store: str, page: Path) -> None:
        self._store, self._page = store, page

    def push(self, who: str) -> float:
        """Return the pushes per second."""
        return _cell(stores(self._page)[self._store][0], RATE, who)

    def drain(self, who: str) -> float:
        """Return the messages per second of a drain."""
        return _cell(stores(self._page)[self._store][1], RATE, who)

    def best_size(self) -> float:
        """Return the rate of a whole drain with the best fixed size, relative to `auto`."""
        _, section = re.split(rf"^### {self._store},.*$", part("sizes", self._page), flags=re.M)
        table, *_ = tables(section)
        rates = [float(row[1].replace(",", "")) for row in table[1:]]
        return max(rates[1:]) / rates[0]

    def hop(self, column: str) -> float:
        """Return how many times as fast a message is with `checkpoint_conf`."""
        (table,) = tables(part("hops", self._page))
        at = table[0].index(column)
        default, ours = (float(row[at]) for row in table[1:] if row[0] == self._store)
        return default / ours


def _cell(table: Table, column: str, who: str) -> float:
    (row,) = (row for row in table if row[0] == who)
    return float(row[table[0].index(column)].replace(",", ""))


@dataclass(frozen=True)
class Rule:
    """When to set what, and how many times as fast that is, by the numbers of a store."""

    when: str
    what: str
    times: Callable[[Numbers], float]


RULES = (
    Rule(
        "many messages are written at once",
        "`layout=bucket` in the write; pushes",
        lambda of: of.push(f"{BUCKETS}, {EXACTLY_ONCE}") / of.push(f"{SINGLE}, {EXACTLY_ONCE}"),
    ),
    Rule(
        "",
        "the same; drains",
        lambda of: of.drain(f"{BUCKETS}, {EXACTLY_ONCE}") / of.drain(f"{SINGLE}, {EXACTLY_ONCE}"),
    ),
    Rule(
        "a message may come twice after a failure",
        "`delivery=at-least-once`; pushes",
        lambda of: of.push(f"{SINGLE}, {AT_LEAST_ONCE}") / of.push(f"{SINGLE}, {EXACTLY_ONCE}"),
    ),
    Rule(
        "",
        "the same; drains",
        lambda of: of.drain(f"{SINGLE}, {AT_LEAST_ONCE}") / of.drain(f"{SINGLE}, {EXACTLY_ONCE}"),
    ),
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
