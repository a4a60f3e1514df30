"""How long the selectors of an exchange take, measured on messages of its queues."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from spark_queue.runner.notes import check_version, note_value
from spark_queue.stores.base import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_queue.graph.exchange import Exchange
    from spark_queue.graph.model import Graph

TIMES_VERSION = 1
TIMES_PREFIX = "exchange-selectors/"

#: How many messages are measured; the fewest and most evaluations; how long they should take (s).
SAMPLE, FEWEST, MOST, ENOUGH = 1_000, 1_000, 100_000, 0.1


@dataclass(frozen=True, slots=True)
class SelectorTimes:
    """The time that each selector of an exchange took.

    `at`: when it was measured (ms since 1970). `messages`: on how many. `microseconds`: for one
    message, by destination; `None` for one without a selector.
    """

    at: int
    messages: int
    microseconds: list[float | None]


def measure_selectors(spark: SparkSession, name: str, exchange: Exchange, graph: Graph) -> SelectorTimes | None:
    """Measure the selectors of an exchange on the messages that wait in its queues.

    The times include that to parse the payload as JSON. No message changes. Returns `None` if there
    are no messages: it looks in the source first, then in the destinations. Raises `StoreError`.
    """
    from pyspark.sql import functions as F

    from spark_queue.runner.exchange import ExchangeStep
    from spark_queue.runner.selector import selector_result
    from spark_queue.runner.sql.fields import JSON_COLUMN

    messages = _sample(spark, exchange, graph)
    if messages is None:
        return None
    count = messages.count()
    found: list[float | None] = []
    for selector, frame in ExchangeStep(spark, name, exchange, graph).selector_inputs(messages):
        if selector is None:
            found.append(None)
            continue
        seen = spark.createDataFrame(frame.toArrow())
        evaluations = FEWEST
        while True:
            times = max(1, evaluations // count)
            many = seen.withColumn("_time", F.explode(F.sequence(F.lit(1), F.lit(times))))
            many = many.withColumn(JSON_COLUMN, F.try_parse_json("payload"))
            took = _seconds(many, selector_result(selector.column, selector.kind)) - _seconds(many, F.col("id"))
            if took >= ENOUGH or evaluations >= MOST:
                break
            evaluations *= 10
        found.append(round(max(0.0, took) * 1e6 / (times * count), 3))
    return SelectorTimes(time.time_ns() // 1_000_000, count, found)


def _sample(spark: SparkSession, exchange: Exchange, graph: Graph) -> DataFrame | None:
    """Return up to SAMPLE messages of the first queue of an exchange that has any."""
    for place in (exchange.src, *(to.place for to in exchange.dst)):
        options = {"url": graph.namespaces[place.ns].url, "queue": place.queue, "failIfMissing": "false"}
        found = spark.read.format("queue").options(**options).load().limit(SAMPLE)
        rows = found.select("id", "queue", "payload", "headers", "mature", "tries").toArrow()
        if rows.num_rows:
            return spark.createDataFrame(rows)
    return None


def _seconds(frame: DataFrame, value: Column) -> float:
    """Return how long it takes to compute a column: the best of three, the first compiles it."""
    from pyspark.sql import functions as F

    took = []
    for _ in range(3):
        began = time.perf_counter()
        frame.agg(F.bit_xor(F.xxhash64(value))).collect()  # a new plan: Spark reuses what one has shuffled
        took.append(time.perf_counter() - began)
    return min(took)


def save_times(store: Store, exchange: str, times: SelectorTimes) -> None:
    """Keep the times of an exchange. Raises `StoreError`."""
    note = note_value(TIMES_VERSION, asdict(times))
    store.change_note(TIMES_PREFIX + exchange, lambda _: note)


def delete_times(store: Store, exchange: str) -> None:
    """Delete the times of an exchange, if there are any. Raises `StoreError`."""
    store.change_note(TIMES_PREFIX + exchange, lambda _: None)


def load_times(store: Store, exchange: str) -> SelectorTimes | None:
    """Return the times of an exchange whose source is in this store, if it was measured.

    Raises `StoreError`.
    """
    note = store.note(TIMES_PREFIX + exchange)
    if note is None:
        return None
    value = note.value
    check_version(value, (TIMES_VERSION,), f"times of the selectors of exchange {exchange!r}")
    return SelectorTimes(value["at"], value["messages"], value["microseconds"])
