"""Find steps of a graph whose queues are the dead-letter queues of each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spark_queue.errors import UsageError
from spark_queue.graph.model import Graph
from spark_queue.graph.step import Step
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.options.url import StoreUrl
from spark_queue.stores import store_class


class _Queue(NamedTuple):
    """A queue of a database. Namespaces may name the same database."""

    database: str
    name: str


def dead_letter_cycle(graph: Graph, step: Step) -> list[str]:
    """Return the queues through which dead letters of the step come back to it, else none.

    The first and the last one are the queue that it reads.
    """
    dead_queues: dict[_Queue, set[_Queue]] = {}
    for one in graph.steps.values():
        for queue, dead in _dead_letter_queues(graph, one):
            dead_queues.setdefault(queue, set()).add(dead)
    for source, _ in _dead_letter_queues(graph, step):
        paths, seen = [[source]], {source}
        while paths:
            path = paths.pop()
            for dead in sorted(dead_queues.get(path[-1], ())):
                if dead == source:
                    return [one.name for one in (*path, dead)]
                if dead not in seen:
                    seen.add(dead)
                    paths.append([*path, dead])
    return []


def _dead_letter_queues(graph: Graph, step: Step) -> Iterator[tuple[_Queue, _Queue]]:
    """Yield the queues that a step reads, each with its dead-letter queue."""
    for place in step.sources:
        namespace = graph.namespaces[place.ns]
        options = {key.lower(): text for key, text in {**namespace.options, **step.options}.items()}
        dead = options.get("deadletterqueue") or dead_letter_queue(place.queue)
        database = _database(namespace.url)
        yield _Queue(database, place.queue), _Queue(database, dead)


def _database(url: str) -> str:
    """Return what all URLs of a database have in common: no login, no options of the driver."""
    try:
        address = StoreUrl.parse(store_class(url).resolve(url))
    except UsageError:  # another mistake, which is reported for itself
        return url
    scheme, _, rest = address.url.partition("?")[0].partition("://")
    place = rest.rpartition("@")[2] if scheme != "sqlite" else rest
    return " ".join([scheme, place, *(address.parameters.get(name, "") for name in ("layout", "pipeline"))])
