"""What looks read: the stores, and the exchanges that are declared in them.

A look is a function of a module whose first argument is these contents. It is marked by `look_at`,
so it runs within a budget, in a thread of the process that `process.py` gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from spark_queue.graph.model import Graph
from spark_queue.rest.lanes import LOOK_BYTES, LOOK_RECORDS, LOOK_SECONDS
from spark_queue.runner.declared import DeclaredExchanges
from spark_queue.stores.named import NamedStores
from spark_queue.stores.support.budget import ReadBudget

P = ParamSpec("P")
T = TypeVar("T")

#: How many records, bytes and seconds a look may take.
LOOK_BUDGET = LOOK_RECORDS, LOOK_BYTES, LOOK_SECONDS


@dataclass(frozen=True, repr=False)  # a URL may hold a password
class Setup:
    """Where the contents are: the URLs of the namespaces, and the graph. It can be pickled.

    `retry_timeout`: how long a call is retried if a database cannot be reached (ms).
    """

    urls: Mapping[str, str]
    graph: Graph
    retry_timeout: int


class Contents:
    """The stores by namespace, each opened at its first use, and the exchanges."""

    def __init__(self, setup: Setup) -> None:
        """Open nothing yet."""
        self.stores = NamedStores(setup.urls, retry_timeout=setup.retry_timeout)
        self.declared = DeclaredExchanges(setup.graph, self.stores)

    def close(self) -> None:
        """Close the stores."""
        self.stores.close()


def look_at(read: Callable[Concatenate[Contents, P], T]) -> Callable[Concatenate[Contents, P], T]:
    """Return a look: `read` within the budget of one. It raises `BudgetExceeded`, too."""

    @wraps(read)
    def read_within_budget(contents: Contents, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with ReadBudget(*LOOK_BUDGET).applied():
            return read(contents, *args, **kwargs)

    return read_within_budget
