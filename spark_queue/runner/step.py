"""The interface of a step that runs: a subclass of `RunnableStep`, which its declaration names."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from spark_queue.errors import UsageError
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.model import Graph
from spark_queue.graph.parts import FieldPath, Place
from spark_queue.graph.step import Step
from spark_queue.options.inputs import QUEUE
from spark_queue.options.roles import parse_options
from spark_queue.options.stream import StreamOptions
from spark_queue.options.values import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_queue.runner.dead_letter_cycles import dead_letter_cycle
from spark_queue.runner.traffic import Traffic
from spark_queue.stores import resolve_options, resolve_place, store_class

D = TypeVar("D", bound=Step)

#: A function that writes messages.
Write = Callable[[DataFrame], None]


class RunnableStep(ABC, Generic[D]):
    """A step of a graph, ready to run. `mistakes`: the reasons why it cannot run."""

    #: The names of the metrics that Spark observes of each batch.
    metrics: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spark: SparkSession, name: str, step: D, graph: Graph) -> None:
        self.name = name
        self.step = step
        self.graph = graph
        refused = list(self._find_mistakes())
        self.mistakes = [*self._build(spark, readable=not refused), *refused]

    @abstractmethod
    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        """Compile the declaration, and return its mistakes.

        `readable`: whether its source can be read.
        """

    @abstractmethod
    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        """Return the rows to write for these messages, and the options of the write."""

    def on_batch(self, write: Write) -> Callable[[DataFrame, int], None] | None:
        """Return the function to call with each batch, or `None` to write the rows of `pipeline`.

        `write`: writes messages.
        """
        return None

    def close(self) -> None:
        """Release its resources."""

    # --- reading ----------------------------------------------------------------------------------

    @property
    def source_field(self) -> str:
        """The field of its declaration that names its sources."""
        return "src"

    @property
    def read_options(self) -> dict[str, str]:
        """The options that its messages are read with; empty if it has no source."""
        if self.step.src is None:
            return {}
        parallel, rows = self.step.consumer.parallel, self.step.consumer.wsize
        return {
            **self._source_options(),
            "consumer": self.name,
            # A move is atomic, so a lease that ends duplicates nothing.
            "delivery": AT_LEAST_ONCE if self.moves else self.step.guarantee,
            **({"maxRecordsPerTrigger": str(rows)} if rows else {}),
            **({"numPartitions": str(parallel)} if parallel else {}),
            **self.graph.namespaces[self.step.src.ns].options,
            **self.step.options,
        }

    def _source_options(self) -> dict[str, str]:
        src = self.step.sources[0]
        return {"url": self._url(src.ns), "queue": src.queue}

    @property
    def queue_options(self) -> StreamOptions | None:
        """The `read_options`, parsed; `None` if it has no source. Raises `OptionError`."""
        read = self.read_options
        return parse_options(read, "stream") if read else None

    @property
    def source_queues(self) -> list[tuple[str, str | None]]:
        """The URL and the queue of each source.

        The queue is `None` for a log, since only its reader knows whether there are new messages.
        """
        return [(self._url(one.ns), one.queue) for one in self.step.sources]

    # --- writing ----------------------------------------------------------------------------------

    @property
    def moves(self) -> bool:
        """Whether it moves each message to one queue of the same database, atomically."""
        return False

    def _can_move(self) -> bool:
        """Return whether the database can move messages from its source to all its destinations."""
        src = self.step.sources[0]
        url = self._url(src.ns)
        places = [to.place for to in self.step.dst]
        movable = all(self._url(to.ns) == url and to.queue != src.queue for to in places)
        return movable and store_class(url).supports_forward

    def _settle_options(self) -> dict[str, str]:
        """Return the options of a write that settles the messages of the batch."""
        read = self.read_options
        return {
            **_pick_options(read, "retrytimeout", "maxtries", "deadletterqueue", "history"),
            "onBadRow": "deadLetter",
            "url": read["url"],
            "queue": read["queue"],
            "consumer": self.name,
            "operation": "settle",
        }

    def _push_options(self, *, exactly_once: bool, on_bad_row: str = "deadLetter") -> dict[str, str]:
        """Return the options of a write of new messages.

        By default, a message that a database cannot hold becomes a dead letter. So the others are
        delivered. The namespace of the first input is one of those that it writes to, because the
        ledger of the sink is there.
        """
        written = [*self.step.sources[:1], *self.step.written_queues]
        return {
            **_pick_options(self.read_options, "retrytimeout", "alloweviction"),
            "onBadRow": on_bad_row,
            "urls": self._urls(written),
            "delivery": EXACTLY_ONCE if exactly_once else AT_LEAST_ONCE,
            # The source refuses a batch that does not fit, and a function may return new values
            # each time.
            **({"replayCheck": "none"} if exactly_once else {}),
        }

    # --- traffic ----------------------------------------------------------------------------------

    @property
    def store_url(self) -> str:
        """The URL of the store that keeps its traffic and its failures."""
        return self._url(self.step.home.ns)

    def batch_metrics(self, progress: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the metrics of a batch, from Spark's progress, or `None` if it has none."""
        rows = progress["observedMetrics"]
        found = [rows[name].asDict() for name in self.metrics if name in rows]
        return {name: one for facts in found for name, one in facts.items()} if found else None

    def pushed_counts(self, traffic: Traffic) -> Counter[str]:
        """Return the numbers of messages pushed, by queue, with those that it could not pass on."""
        lost = {str(place): getattr(traffic, counter) for place, counter in self.step.unrouted_queues.items()}
        return traffic.pushed + Counter(lost)

    # --- mistakes ---------------------------------------------------------------------------------

    def _find_mistakes(self) -> Iterator[Mistake]:
        """Yield the mistakes that `format("queue")` can find without its databases."""
        try:
            if options := self.queue_options:
                resolve_options(options)
            if cycle := dead_letter_cycle(self.graph, self.step):
                text = (
                    f"its dead letters come back to it: {' -> '.join(cycle)}. Set another deadLetterQueue in the "
                    "options of one of the steps that read these queues"
                )
                yield Mistake((self.step.section, self.name, self.source_field), text)
            if text := self._source_mistake():
                yield Mistake((self.step.section, self.name, self.source_field), text)
        except UsageError as error:
            yield Mistake((self.step.section, self.name, self.source_field), str(error))
        for path, place in self._written_queues():
            try:
                resolve_place(self._url(place.ns), [(place.queue, QUEUE)])
            except UsageError as error:
                yield Mistake((self.step.section, self.name, *path), str(error))

    def _source_mistake(self) -> str:
        """Return why its source cannot be read; an empty text if it can."""
        return ""

    def _written_queues(self) -> Iterable[tuple[FieldPath, Place]]:
        """Return the queues that it writes, each with its path in the declaration."""
        return [(("dst", number), one.place) for number, one in enumerate(self.step.dst)]

    # --- databases --------------------------------------------------------------------------------

    def _url(self, ns: str) -> str:
        return self.graph.namespaces[ns].url

    def _urls(self, places: Iterable[Place]) -> str:
        return json.dumps({one.ns: self._url(one.ns) for one in places})


def _pick_options(options: Mapping[str, str], *keys: str) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() in keys}
