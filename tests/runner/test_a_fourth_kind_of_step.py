"""Another kind of step is one file and one field of a graph: the runner does not know the other kinds either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_queue import ExchangeGraph, Queue
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.model import STEPS, Graph, Namespace
from spark_queue.graph.parts import FORBID, AtPlace, Consumer, NameOfStep, Place
from spark_queue.options.values import EXACTLY_ONCE
from spark_queue.runner.step import RunnableStep


@dataclass(frozen=True)
class Tap:
    """Copies each message of a queue to another, with where it came from."""

    __pydantic_config__ = FORBID

    section: ClassVar[str] = "taps"
    runner: ClassVar[str] = f"{__name__}:TapStep"

    src: AtPlace
    to: AtPlace
    consumer: Consumer = field(default_factory=Consumer)
    options: dict[str, str] = field(default_factory=dict)
    every: int = 0
    guarantee: ClassVar[str] = EXACTLY_ONCE
    needs_all: ClassVar[bool] = True

    @property
    def sources(self) -> list[Place]:
        return [self.src]

    @property
    def dst(self) -> list[Place]:
        return [self.to]

    @property
    def written(self) -> list[Place]:
        return [self.to]

    def namespaces(self) -> list[str]:
        return [self.to.ns]


class TapStep(RunnableStep[Tap]):
    """Runs it."""

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        return []

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        headers = F.create_map(F.lit("from"), F.lit(str(self.step.src)))
        copies = messages.select(
            F.lit(self.step.to.ns).alias("ns"),
            F.lit(self.step.to.queue).alias("queue"),
            "payload",
            headers.alias("headers"),
        )
        return copies, self._push(once=True)

    def observed(self, progress: Mapping[str, Any]) -> dict[str, Any] | None:
        return {"received": progress["numInputRows"], "pushed_0": progress["numInputRows"]}


@dataclass(frozen=True)
class TapGraph(Graph):
    """A graph with one more field."""

    taps: dict[NameOfStep, Tap] = field(default_factory=dict, metadata=STEPS)


def test_a_fourth_kind_of_step_runs_beside_the_others(spark, sqlite_url, tmp_path):
    with Queue(sqlite_url, "a") as queue:
        queue.push_many([1, 2, 3])
    one, two = Tap(Place("a", "l"), Place("b", "l")), Tap(Place("b", "l"), Place("c", "l"))
    graph = ExchangeGraph(
        TapGraph({"l": Namespace(sqlite_url)}, taps={"one": one, "two": two}), f"{tmp_path}/checkpoints"
    )
    graph.drain(spark)
    found = graph.status()
    assert {name: (one.state, one.traffic.received) for name, one in found.items()} == {
        "one": ("finished", 3), "two": ("finished", 3),
    }  # fmt: skip
    assert [(one.payload, one.headers) for one in graph.messages("l/c")] == [(n, {"from": "l/b"}) for n in (1, 2, 3)]
    graph.remove("two")
    graph.add("three", Tap(Place("c", "l"), Place("d", "l")))
    graph.drain(spark)
    assert [one.payload for one in graph.messages("l/d")] == [1, 2, 3]
