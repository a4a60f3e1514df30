"""An exchange as a step between DataFrames: messages in, copies for its destinations out.

A message passes the destinations in order. Each of them sees the changes of those before it, in
`payload`, `headers` and `state`. Its hops are counted first, in the header `x-hop-count`. A message
that has gone through `max_hops` exchanges goes only to `__too_many_hops__`, and one without a
destination to `__no_route__`. Both get the name of the exchange in the header `x-exchange-name`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_queue.errors import did_you_mean
from spark_queue.graph.exchange import NO_ROUTE, TOO_MANY_HOPS, Destination, Exchange
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.options.values import EXACTLY_ONCE
from spark_queue.runner.selector import (
    EXPRESSION_COLUMNS,
    SELECTOR_FIELDS,
    SELECTOR_RESULT,
    CompiledExpression,
    ExpressionCompiler,
    changed_map,
    changed_payload,
    check_selector_type,
    ignored_fields,
    selector_result,
    with_header,
)
from spark_queue.runner.sql.fields import JSON_COLUMN
from spark_queue.runner.step import RunnableStep

log = logging.getLogger(__name__)

HOPS_HEADER, NAME_HEADER = "x-hop-count", "x-exchange-name"

#: The name of the metrics that Spark observes of each batch.
EXCHANGE_METRICS = "exchange"

_COPY_TYPE = (
    "STRUCT<ns: STRING, queue: STRING, payload: STRING, headers: MAP<STRING, STRING>, "
    "mature: TIMESTAMP, delay: DOUBLE, tries: INT>"
)


@dataclass(frozen=True)
class _CompiledDestination:
    """A destination with its compiled expressions."""

    to: Destination
    selector: CompiledExpression | None
    payload: CompiledExpression | None
    headers: Mapping[str, Column]
    state: Mapping[str, Column]


class ExchangeStep(RunnableStep[Exchange]):
    """An exchange of a graph."""

    metrics = (EXCHANGE_METRICS,)

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        frame = spark.createDataFrame([], EXPRESSION_COLUMNS)
        mistakes: list[Mistake] = []
        self._destinations: list[_CompiledDestination] = []
        for number, to in enumerate(self.step.dst):
            compiler = ExpressionCompiler(frame, ("exchanges", self.name, "dst", number), mistakes)
            selector = compiler.compile(to.selector, "selector", check=check_selector_type)
            for field in ignored_fields(selector.kind) if selector else ():
                hint = did_you_mean(field, SELECTOR_FIELDS) or f"; it may have {', '.join(SELECTOR_FIELDS)}"
                log.warning(
                    "exchange %r, destination %d: its selector has the field %r, which is ignored%s",
                    self.name, number + 1, field, hint,
                )  # fmt: skip
            self._destinations.append(
                _CompiledDestination(
                    to,
                    selector,
                    compiler.compile(to.set.payload, "set", "payload"),
                    compiler.compile_texts(to.set.headers, "set", "headers"),
                    compiler.compile_texts(to.set.state, "set", "state"),
                )
            )
        return mistakes

    @property
    def moves(self) -> bool:
        return len(self.step.dst) == 1 and self.step.consumer.reserve and self._can_move()

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        if self.moves:
            return self.outcomes(messages), self._settle_options()
        return self.copies(messages), self._push_options(exactly_once=self.step.guarantee == EXACTLY_ONCE)

    def copies(self, messages: DataFrame) -> DataFrame:
        """Return the copies, in the columns `ns, queue, payload, headers, mature, delay, tries`.

        `messages`: those of its source. Each batch is observed, under `EXCHANGE_METRICS`.
        """
        frame, copies = self._route(messages)
        return frame.select(F.inline(F.array(*copies))).where("queue IS NOT NULL")

    def outcomes(self, messages: DataFrame) -> DataFrame:
        """Return a move for each message, in the columns of `operation=settle`.

        The exchange must have exactly one destination. A message goes there, or to a queue for
        messages that it cannot route. `payload` is NULL if it does not change. Each batch is
        observed, as by `copies`.
        """
        frame, copies = self._route(messages)
        frame = frame.withColumn("_copy", F.coalesce(*copies))
        changed = ["headers", "mature", "delay", "tries", *(["payload"] if self._destinations[0].payload else [])]
        values = (F.col("_copy")[name].alias(name) for name in changed)
        return frame.select("id", F.lit("move").alias("outcome"), F.col("_copy")["queue"].alias("to"), *values)

    def selector_inputs(self, messages: DataFrame) -> Iterator[tuple[CompiledExpression | None, DataFrame]]:
        """Yield the selector of each destination, with the messages as it sees them, not parsed."""
        frame, copy_columns = self._count_hops(messages), list[dict[str, str]]()
        for number, leg in enumerate(self._destinations):
            yield leg.selector, frame.select("id", "queue", "payload", "headers", "mature", "tries", "state")
            frame = _apply_destination(frame, number, leg, copy_columns)

    def _route(self, messages: DataFrame) -> tuple[DataFrame, list[Column]]:
        """Return the messages after all destinations, and their copies (NULL: not copied)."""
        frame, copy_columns = self._count_hops(messages), list[dict[str, str]]()
        for number, leg in enumerate(self._destinations):
            frame = _apply_destination(frame, number, leg, copy_columns)
        nowhere = reduce(and_, (~F.col(f"_goes{number}") for number in range(len(copy_columns))), ~F.col("_over"))
        frame = frame.withColumn("_nowhere", nowhere)
        named = with_header(F.col("headers"), NAME_HEADER, F.lit(self.name))
        frame = frame.withColumn("_named", F.when(F.col("_nowhere") | F.col("_over"), named))
        frame = frame.observe(EXCHANGE_METRICS, *self._metrics())
        src, named = self.step.src, F.col("_named")
        copies = [
            *(
                _copy_to(leg, number, names)
                for number, (leg, names) in enumerate(zip(self._destinations, copy_columns, strict=True))
            ),
            F.when(F.col("_nowhere"), _copy(src.ns, NO_ROUTE, headers=named)),
            F.when(F.col("_over"), _copy(src.ns, TOO_MANY_HOPS, headers=named)),
        ]
        return frame, copies

    def _count_hops(self, messages: DataFrame) -> DataFrame:
        """Return the messages with their hops counted, and with the columns of expressions."""
        headers = F.coalesce("headers", F.create_map().cast("map<string,string>"))
        text = headers[HOPS_HEADER]
        max_hops = F.lit(self.graph.max_hops)  # the header may be a number of any length
        number = F.least(F.trim(text).try_cast("decimal(38)"), max_hops).cast("int")
        hops = F.when(text.rlike(r"^\s*\d+\s*$"), number)
        so_far = F.coalesce(hops, F.lit(0))
        over = so_far >= max_hops
        with_hops = with_header(headers, HOPS_HEADER, (so_far + 1).cast("string"))
        seen = messages.select("id", "queue", "payload", headers.alias("headers"), "mature", "tries")
        return seen.select(
            "id",
            "queue",
            "payload",
            "mature",
            "tries",
            F.when(over, headers).otherwise(with_hops).alias("headers"),
            F.create_map().cast("map<string,string>").alias("state"),
            F.try_parse_json("payload").alias(JSON_COLUMN),
            over.alias("_over"),
            (text.isNotNull() & hops.isNull()).alias("_odd_hops"),
        )  # fmt: skip

    def _metrics(self) -> Iterator[Column]:
        yield F.count(F.lit(1)).alias("received")
        for number in range(len(self._destinations)):
            yield F.count_if(f"_goes{number}").alias(f"pushed_{number}")
            yield F.count_if(F.col(f"_answer{number}").isNull()).alias(f"failed_{number}")
        yield F.count_if("_nowhere").alias("no_route")
        yield F.count_if("_over").alias("too_many_hops")
        yield F.count_if("_odd_hops").alias("odd_hops")


def _apply_destination(
    frame: DataFrame, number: int, destination: _CompiledDestination, copy_columns: list[dict[str, str]]
) -> DataFrame:
    """Return the messages after a destination: whether each gets a copy, and its changes.

    `copy_columns`: the columns of the payload and headers for each destination before. Those of
    this one are added.
    """
    selector = destination.selector
    result = selector_result(selector.column, selector.kind) if selector else F.lit("{}")
    name = f"_answer{number}"
    frame = frame.withColumn(name, F.when(F.col("_over"), "false").otherwise(result))
    goes = F.coalesce(F.col(name) != "false", F.lit(False))
    new: dict[str, Column] = {}
    if destination.payload is not None:
        new["payload"] = changed_payload(destination.payload)
    if destination.headers:
        new["headers"] = changed_map(F.col("headers"), destination.headers)
    if destination.state:
        new["state"] = changed_map(F.col("state"), destination.state)
    if new:
        applies = ~F.col("_over") if destination.to.apply == "always" else goes
        frame = frame.withColumns({f"_{one}": F.when(applies, made) for one, made in new.items()})
        failed = applies & reduce(or_, (F.col(f"_{one}").isNull() for one in new))
        frame = frame.withColumn(name, F.when(~failed, F.col(name)))
        changes = applies & ~failed
        before = {one: f"_{one}{number}" for one in new if any(names.get(one) == one for names in copy_columns)}
        frame = frame.withColumns({column: F.col(one) for one, column in before.items()})
        copy_columns[:] = [
            {one: before.get(one, column) if one == column else column for one, column in names.items()}
            for names in copy_columns
        ]
        frame = frame.withColumns({one: F.when(changes, F.col(f"_{one}")).otherwise(F.col(one)) for one in new})
        if "payload" in new:
            frame = frame.withColumn(JSON_COLUMN, F.try_parse_json("payload"))
    copy_columns.append({"payload": "payload", "headers": "headers"})
    return frame.withColumn(f"_goes{number}", goes)


def _copy_to(destination: _CompiledDestination, number: int, names: Mapping[str, str]) -> Column:
    """Return the copy for a destination, NULL if there is none.

    `names`: the columns of its payload and headers.
    """
    special = {one: F.col(column) for one, column in names.items()}
    if destination.selector is not None and isinstance(destination.selector.kind, StructType):
        result = F.from_json(f"_answer{number}", SELECTOR_RESULT)
        special["mature"] = F.timestamp_millis(result["mature"])
        special["delay"] = F.when(result["mature"].isNull(), result["delay"].cast("double") / 1000)
        special["tries"] = result["tries"]
    return F.when(F.col(f"_goes{number}"), _copy(destination.to.ns, destination.to.queue, **special))


def _copy(ns: str, queue: str, **special: Column) -> Column:
    """Return a copy of a message, with its current values except for `special`."""
    columns = {"ns": F.lit(ns), "queue": F.lit(queue), "payload": F.col("payload"), "headers": F.col("headers")}
    columns |= {name: F.lit(None) for name in SELECTOR_FIELDS}
    columns |= special
    return F.struct(*(one.alias(name) for name, one in columns.items())).cast(_COPY_TYPE)
