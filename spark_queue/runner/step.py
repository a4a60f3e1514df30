"""What the runner needs of a step. Each kind of step is a subclass of `RunnableStep`, which its declaration names."""

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
from spark_queue.graph.parts import Path, Place
from spark_queue.graph.step import Step
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_queue.runner.traffic import Traffic
from spark_queue.stores import store_class, usable

D = TypeVar("D", bound=Step)

#: Writes messages.
Write = Callable[[DataFrame], None]


class RunnableStep(ABC, Generic[D]):
    """One step of a graph, ready to run. `mistakes`: what cannot work in it."""

    #: The names of the metrics that Spark observes of each batch.
    metrics: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spark: SparkSession, name: str, step: D, graph: Graph) -> None:
        self.name = name
        self.step = step
        self.graph = graph
        refused = list(self._refused())
        self.mistakes = [*self._build(spark, readable=not refused), *refused]

    @abstractmethod
    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        """Make what it does of its declaration; return what cannot work. `readable`: its source can be read."""

    @abstractmethod
    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        """What it makes of the messages that it reads, and the options with which that is written."""

    def on_batch(self, write: Write) -> Callable[[DataFrame, int], None] | None:
        """What is called with each batch, if it works by itself; `write` writes messages."""
        return None

    def close(self) -> None:
        """Release what it holds."""

    # --- what is read -------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The field of its declaration that says what it reads."""
        return "src"

    @property
    def reads(self) -> dict[str, str]:
        """The options with which its messages are read; none if it reads nothing."""
        if self.step.src is None:
            return {}
        parallel = self._parallel
        return {
            **self._source(),
            "consumer": self.name,
            # What moves is in one queue at every moment: a lease that ends doubles nothing.
            "delivery": AT_LEAST_ONCE if self.moves else self.step.guarantee,
            "maxRecordsPerTrigger": str(self.step.consumer.wsize),
            **({} if parallel is None else {"numPartitions": str(parallel)}),
            **self.graph.namespaces[self.step.src.ns].options,
            **self.step.options,
        }

    def _source(self) -> dict[str, str]:
        assert self.step.src is not None
        return {"url": self._url(self.step.src.ns), "queue": self.step.src.queue}

    @property
    def _parallel(self) -> int | None:
        return self.step.consumer.parallel

    @property
    def options(self) -> QueueOptions | None:
        """The same, parsed. Raises `OptionError`."""
        read = self.reads
        return QueueOptions.parse(read, "stream") if read else None

    @property
    def waits_for(self) -> list[tuple[str, str | None]]:
        """The queues that it reads, with their stores; no queue if that is a log, of which only its reader knows."""
        return [(self._url(one.ns), one.queue) for one in self.step.sources]

    # --- what is written ----------------------------------------------------------------------------------------

    @property
    def moves(self) -> bool:
        """Whether its messages move, each to one queue of the same database, in one step of it."""
        return False

    def _in_one_database(self) -> bool:
        """Whether its database can move messages from its source to all its destinations."""
        assert self.step.src is not None
        src, places = self.step.src, [to.place for to in self.step.dst]
        url = self._url(src.ns)
        alike = all(to.ns == src.ns or self._url(to.ns) == url for to in places)
        elsewhere = all(to.queue != src.queue for to in places)
        return alike and elsewhere and store_class(url).forwards

    def _settle(self) -> dict[str, str]:
        """The options of a write that says what becomes of the messages that are read."""
        read = self.reads
        assert self.step.src is not None
        return {
            **_those(read, "retrytimeout", "maxtries", "deadletterqueue", "history"),
            "onBadRow": "deadLetter",
            "url": read["url"],
            "queue": self.step.src.queue,
            "consumer": self.name,
            "operation": "settle",
        }

    def _push(self, *, once: bool, on_bad_row: str = "deadLetter") -> dict[str, str]:
        """The options of a write of new messages.

        What a database cannot hold must not keep the rest from its destinations.
        """
        return {
            **_those(self.reads, "retrytimeout", "alloweviction"),
            "onBadRow": on_bad_row,
            "urls": self._urls(self.step.namespaces()),
            "delivery": EXACTLY_ONCE if once else AT_LEAST_ONCE,
            # The source refuses what does not fit, and a function may return something new each time.
            **({"replayCheck": "none"} if once else {}),
        }

    # --- what it did --------------------------------------------------------------------------------------------

    @property
    def home(self) -> str:
        """The URL of the store that is told what it did."""
        assert self.step.src is not None
        return self._url(self.step.src.ns)

    def observed(self, progress: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was observed of a batch, from Spark's progress; `None` if nothing was."""
        rows = progress["observedMetrics"]
        found = [rows[name].asDict() for name in self.metrics if name in rows]
        return {name: one for facts in found for name, one in facts.items()} if found else None

    def pushed(self, traffic: Traffic) -> Counter[str]:
        """What it has pushed, by queue: also what it could not pass on."""
        lost = {str(place): getattr(traffic, counter) for place, counter in self.step.leftovers.items()}
        return traffic.pushed + Counter(lost)

    # --- mistakes -----------------------------------------------------------------------------------------------

    def _refused(self) -> Iterator[Mistake]:
        """What `format("queue")` refuses of it, as far as it can tell without its databases."""
        try:
            options = self.options
            if options is not None:
                usable(options)
            if text := self._refused_source():
                yield Mistake((self.step.section, self.name, self.key), text)
        except UsageError as error:
            yield Mistake((self.step.section, self.name, self.key), str(error))
        for path, place in self._targets():
            try:
                usable(QueueOptions(url=self._url(place.ns), queue=place.queue))
            except UsageError as error:
                yield Mistake((self.step.section, self.name, *path), str(error))

    def _refused_source(self) -> str:
        """Why it cannot read what it reads; an empty text if it can."""
        return ""

    def _targets(self) -> Iterable[tuple[Path, Place]]:
        """The queues that it writes, and where they are declared."""
        return [(("dst", number), one.place) for number, one in enumerate(self.step.dst)]

    # --- databases ----------------------------------------------------------------------------------------------

    def _url(self, ns: str) -> str:
        return self.graph.namespaces[ns].url

    def _urls(self, spaces: Iterable[str]) -> str:
        return json.dumps({ns: self._url(ns) for ns in spaces})


def _those(options: Mapping[str, str], *keys: str) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() in keys}
