"""Find the queues that a query reads, in its plan. Not with Spark Connect, which hides it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_queue.options.roles import parse_options
from spark_queue.options.stream import StreamOptions

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def execution_of(query: StreamingQuery) -> Any:
    """Return Java's object that runs a query; `None` with Spark Connect."""
    wrapper = getattr(query, "_jsq", None)
    return None if wrapper is None else wrapper.streamingQuery()


def source_options(query: StreamingQuery) -> Iterator[StreamOptions]:
    """Yield the options of each source of a query that is ours."""
    leaves = execution_of(query).analyzedPlan().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.nodeName() == "StreamingRelationV2" and leaf.sourceName().lower() == "queue":
            yield parse_options(dict(leaf.extraOptions()), "stream")
