"""An exchange as a step between DataFrames: messages in, copies for its destinations out.

A message passes the destinations in order. Each of them sees the changes of those before it, in
`payload`, `headers` and `state`. Its hops are counted first, in the header `x-hop-count`. A message
that has gone through `max_hops` exchanges goes only to `__too_many_hops__`, and one without a
destination to `__no_route__`. Both get the name of the exchange in the header `x-exchange-name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.model import NO_ROUTE, TOO_MANY_HOPS, Destination, Exchange
from spark_queue.options.values import EXACTLY_ONCE
from spark_queue.runner.selector import (
    ANSWER,
    JSON_COLUMN,
    SEEN,
    Maker,
    Typed,
    answer,
    changed_map,
    changed_payload,
    check_selector,
)
from spark_queue.runner.step import RunnableStep

HOPS, NAME = "x-hop-count", "x-exchange-name"

#: The name of the metrics that Spark observes of each batch.
EXCHANGE_METRICS = "exchange"

_COPY = (
    "STRUCT<ns: STRING, queue: STRING, payload: STRING, headers: MAP<STRING, STRING>, "
    "mature: TIMESTAMP, delay: DOUBLE, tries: INT>"
)


@dataclass(frozen=True)
class _Leg:
    """A destination with its compiled expressions."""

    to: Destination
    selector: Typed | None
    payload: Typed | None
    headers: Mapping[str, Column]
    state: Mapping[str, Column]


class ExchangeStep(RunnableStep[Exchange]):
    """An exchange of a graph."""

    metrics = (EXCHANGE_METRICS,)

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        self._route, mistakes = Route.of(spark, self.name, self.step, self.graph.max_hops)
        return mistakes

    @property
    def moves(self) -> bool:
        return len(self.step.dst) == 1 and self.step.consumer.reserve and self._in_one_database()

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        if self.moves:
            return self._route.outcomes(messages), self._settle()
        return self._route.copies(messages), self._push(once=self.step.guarantee == EXACTLY_ONCE)


class Route:
    """An exchange that is ready to run on any DataFrame of messages."""

    def __init__(self, name: str, exchange: Exchange, max_hops: int, legs: list[_Leg]) -> None:
        self.name = name
        self.exchange = exchange
        self.max_hops = max_hops
        self._legs = legs

    @classmethod
    def of(cls, spark: SparkSession, name: str, exchange: Exchange, max_hops: int) -> tuple[Route, list[Mistake]]:
        """Return the compiled exchange, and its mistakes."""
        frame = spark.createDataFrame([], SEEN)
        legs: list[_Leg] = []
        mistakes: list[Mistake] = []
        for number, to in enumerate(exchange.dst):
            maker = Maker(frame, ("exchanges", name, "dst", number), mistakes)
            legs.append(
                _Leg(
                    to,
                    maker.made(to.selector, "selector", check=check_selector),
                    maker.made(to.set.payload, "set", "payload"),
                    maker.all_made(to.set.headers, "set", "headers"),
                    maker.all_made(to.set.state, "set", "state"),
                )
            )
        return cls(name, exchange, max_hops, legs), mistakes

    def copies(self, messages: DataFrame) -> DataFrame:
        """Return the copies, in the columns `ns, queue, payload, headers, mature, delay, tries`.

        `messages`: those of its source. Each batch is observed, under `EXCHANGE_METRICS`.
        """
        frame, copies = self._routed(messages)
        return frame.select(F.inline(F.array(*copies))).where("queue IS NOT NULL")

    def outcomes(self, messages: DataFrame) -> DataFrame:
        """Return a move for each message, in the columns of `operation=settle`.

        The exchange must have exactly one destination. A message goes there, or to a queue for
        messages that it cannot route. `payload` is NULL if it does not change. Each batch is
        observed, as by `copies`.
        """
        frame, copies = self._routed(messages)
        frame = frame.withColumn("_copy", F.coalesce(*copies))
        changed = ["headers", "mature", "delay", "tries", *(["payload"] if self._legs[0].payload else [])]
        told = (F.col("_copy")[name].alias(name) for name in changed)
        return frame.select("id", F.lit("move").alias("outcome"), F.col("_copy")["queue"].alias("to"), *told)

    def _routed(self, messages: DataFrame) -> tuple[DataFrame, list[Column]]:
        """Return the messages after all destinations, and their copies (NULL: not copied)."""
        frame, kept = self._counted(messages), list[dict[str, str]]()
        for number, leg in enumerate(self._legs):
            frame = _through(frame, number, leg, kept)
        nowhere = reduce(and_, (~F.col(f"_goes{number}") for number in range(len(kept))), ~F.col("_over"))
        frame = frame.withColumn("_nowhere", nowhere)
        named = _with_header(F.col("headers"), NAME, F.lit(self.name))
        frame = frame.withColumn("_named", F.when(F.col("_nowhere") | F.col("_over"), named))
        frame = frame.observe(EXCHANGE_METRICS, *self._observed())
        src, named = self.exchange.src, F.col("_named")
        copies = [
            *(_copy_to(leg, number, names) for number, (leg, names) in enumerate(zip(self._legs, kept, strict=True))),
            F.when(F.col("_nowhere"), _copy(src.ns, NO_ROUTE, headers=named)),
            F.when(F.col("_over"), _copy(src.ns, TOO_MANY_HOPS, headers=named)),
        ]
        return frame, copies

    def _counted(self, messages: DataFrame) -> DataFrame:
        """Return the messages with their hops counted, and with the columns of expressions."""
        headers = F.coalesce("headers", F.create_map().cast("map<string,string>"))
        text = headers[HOPS]
        most = F.lit(self.max_hops)  # the header may be a number of any length
        number = F.least(F.trim(text).try_cast("decimal(38)"), most).cast("int")
        hops = F.when(text.rlike(r"^\s*\d+\s*$"), number)
        so_far = F.coalesce(hops, F.lit(0))
        over = so_far >= self.max_hops
        counted = _with_header(headers, HOPS, (so_far + 1).cast("string"))
        seen = messages.select("id", "queue", "payload", headers.alias("headers"), "mature", "tries")
        return seen.select(
            "id",
            "queue",
            "payload",
            "mature",
            "tries",
            F.when(over, headers).otherwise(counted).alias("headers"),
            F.create_map().cast("map<string,string>").alias("state"),
            F.try_parse_json("payload").alias(JSON_COLUMN),
            over.alias("_over"),
            (text.isNotNull() & hops.isNull()).alias("_odd_hops"),
        )  # fmt: skip

    def _observed(self) -> Iterator[Column]:
        def counted(what: Column, name: str) -> Column:
            return F.count_if(what).alias(name)

        yield F.count(F.lit(1)).alias("received")
        for number in range(len(self._legs)):
            yield counted(F.col(f"_goes{number}"), f"pushed_{number}")
            yield counted(F.col(f"_answer{number}").isNull(), f"failed_{number}")
        yield counted(F.col("_nowhere"), "no_route")
        yield counted(F.col("_over"), "too_many_hops")
        yield counted(F.col("_odd_hops"), "odd_hops")


def _through(frame: DataFrame, number: int, leg: _Leg, kept: list[dict[str, str]]) -> DataFrame:
    """Return the messages after a destination: whether each gets a copy, and its changes.

    `copy_columns`: the columns of the payload and headers for each destination before. Those of
    this one are added.
    """
    said = F.lit("{}") if leg.selector is None else answer(leg.selector.made, leg.selector.kind)
    name = f"_answer{number}"
    frame = frame.withColumn(name, F.when(F.col("_over"), "false").otherwise(said))
    goes = F.coalesce(F.col(name) != "false", F.lit(False))
    new: dict[str, Column] = {}
    if leg.payload is not None:
        new["payload"] = changed_payload(leg.payload.made, leg.payload.kind)
    if leg.headers:
        new["headers"] = changed_map(F.col("headers"), leg.headers)
    if leg.state:
        new["state"] = changed_map(F.col("state"), leg.state)
    if new:
        frame = frame.withColumns({f"_{one}": F.when(goes, made) for one, made in new.items()})
        failed = reduce(or_, (F.col(f"_{one}").isNull() for one in new))
        frame = frame.withColumn(name, F.when(~goes | ~failed, F.col(name)))
        before = {one: f"_{one}{number}" for one in new if any(names.get(one) == one for names in kept)}
        frame = frame.withColumns({column: F.col(one) for one, column in before.items()})
        kept[:] = [
            {one: before.get(one, column) if one == column else column for one, column in names.items()}
            for names in kept
        ]
        frame = frame.withColumns({one: F.when(goes, F.col(f"_{one}")).otherwise(F.col(one)) for one in new})
        if "payload" in new:
            frame = frame.withColumn(JSON_COLUMN, F.try_parse_json("payload"))
    kept.append({"payload": "payload", "headers": "headers"})
    return frame.withColumn(f"_goes{number}", goes)


def _copy_to(leg: _Leg, number: int, names: Mapping[str, str]) -> Column:
    """Return the copy for a destination, NULL if there is none.

    `names`: the columns of its payload and headers.
    """
    special = {one: F.col(column) for one, column in names.items()}
    if leg.selector is not None and isinstance(leg.selector.kind, StructType):
        told = F.from_json(f"_answer{number}", ANSWER)
        special["mature"] = F.timestamp_millis(told["mature"])
        special["delay"] = told["delay"].cast("double") / 1000
        special["tries"] = told["tries"]
    return F.when(F.col(f"_goes{number}"), _copy(leg.to.ns, leg.to.queue, **special))


def _copy(ns: str, queue: str, **special: Column) -> Column:
    """Return a copy of a message, with its current values except for `special`."""
    columns = {
        "ns": F.lit(ns),
        "queue": F.lit(queue),
        "payload": F.col("payload"),
        "headers": F.col("headers"),
        "mature": F.lit(None),
        "delay": F.lit(None),
        "tries": F.lit(None),
    } | special
    return F.struct(*(one.alias(name) for name, one in columns.items())).cast(_COPY)


def _with_header(headers: Column, name: str, value: Column) -> Column:
    entry = F.create_map(F.lit(name), value)
    others = F.map_filter(headers, lambda key, _: key != name)
    return F.map_concat(F.when(F.map_contains_key(headers, name), others).otherwise(headers), entry)
