"""A link as a step between DataFrames: messages in, rows for `operation=settle` out.

Expressions decide about a message, guarded as in an exchange, or a Python function. The function is
called in Spark's workers, for one message at a time. If either fails, the message is rolled back,
and retried after `tries * factor + base` seconds, as in keuss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_queue.errors import GraphError
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.link_function import DROP, Forward, LinkFunction, Unchanged
from spark_queue.graph.model import Link, Retry
from spark_queue.messages.json_text import clean_text, dump_json
from spark_queue.messages.message import Message
from spark_queue.messages.payload import decode
from spark_queue.messages.value_errors import check_id_and_headers
from spark_queue.runner.selector import (
    EXPRESSION_COLUMNS,
    SELECTOR_FIELDS,
    SELECTOR_RESULT,
    ExpressionCompiler,
    changed_map,
    changed_payload,
    check_selector_type,
    load_function,
    null_on_error,
    selector_result,
)
from spark_queue.runner.sql.fields import JSON_COLUMN
from spark_queue.runner.step import RunnableStep
from spark_queue.spark.schema import arrow_schema
from spark_queue.spark.worker import freeze_gc

#: The name of the metrics that Spark observes of each batch.
LINK_METRICS = "link"

#: The columns of `operation=settle`.
SETTLE_TYPE = StructType(
    [
        *(StructField(name, StringType()) for name in ("id", "outcome", "reason", "to", "payload")),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("mature", TimestampType()),
        StructField("delay", DoubleType()),
        StructField("tries", IntegerType()),
    ]
)
SETTLE_ARROW_SCHEMA = arrow_schema(SETTLE_TYPE)

#: The maximum length of an error in the headers of a message.
ERROR_LENGTH = 500

log = logging.getLogger(__name__)


class LinkStep(RunnableStep[Link]):
    """A link of a graph."""

    metrics = (LINK_METRICS,)

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        mistakes: list[Mistake] = []
        if self.step.process is None:
            self._decide = _Expressions(spark, self.name, self.step, mistakes).decide
            return mistakes
        calls = _FunctionCalls(self.step)
        self._decide = lambda messages: messages.mapInArrow(calls, SETTLE_TYPE)
        try:
            load_function(self.step.process)
        except GraphError as error:
            mistakes.append(Mistake(("links", self.name, "process"), str(error)))
        return mistakes

    @property
    def moves(self) -> bool:
        return self._can_move()

    def _source_mistake(self) -> str:
        if self.step.dst and not self.moves:
            return "its database cannot move messages in one step: a link needs MongoDB with layout=pl-mongo"
        return ""

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        headers = F.coalesce("headers", F.create_map().cast("map<string,string>")).alias("headers")
        rows = self._decide(messages.select("id", "queue", "payload", headers, "mature", "tries", "pushed"))
        outcome, to = F.col("outcome"), F.col("to")
        observed = rows.observe(
            LINK_METRICS,
            F.count(F.lit(1)).alias("received"),
            *(F.count_if(to == one.queue).alias(f"pushed_{n}") for n, one in enumerate(self.step.dst)),
            F.count_if(outcome == "commit").alias("done"),
            F.count_if(outcome == "rollback").alias("again"),
        )
        return observed, self._settle_options()


def retry_delay(retry: Retry, tries: Any) -> Any:
    """Return the seconds until a retry, after `tries` earlier failures: the formula of keuss."""
    return tries * retry.factor + retry.base


# --- by expressions -------------------------------------------------------------------------------


class _Expressions:
    """The compiled expressions of a link."""

    def __init__(self, spark: SparkSession, name: str, link: Link, mistakes: list[Mistake]) -> None:
        compiler = ExpressionCompiler(spark.createDataFrame([], EXPRESSION_COLUMNS), ("links", name), mistakes)
        self._link = link
        self._drop = compiler.compile(link.drop, "drop", check=_check_boolean)
        self._to = compiler.compile(link.to, "to", check=_check_destination)
        self._payload = compiler.compile(link.set.payload, "set", "payload")
        self._headers = compiler.compile_texts(link.set.headers, "set", "headers")
        self._when = {
            part: made
            for part in SELECTOR_FIELDS
            if (made := compiler.compile(getattr(link.set, part), "set", part, check=_check_part(part))) is not None
        }

    def decide(self, messages: DataFrame) -> DataFrame:
        """Return the rows that settle these messages."""
        state = F.create_map().cast("map<string,string>")
        frame = messages.withColumns({"state": state, JSON_COLUMN: F.try_parse_json("payload")})
        drop = F.lit("false") if self._drop is None else selector_result(self._drop.column, self._drop.kind)
        made = self._changes()
        frame = frame.withColumns({"_drop": drop, **{f"_{name}": one for name, one in made.items()}})
        failed = F.coalesce(*(F.when(F.col(f"_{name}").isNull(), name) for name in ("drop", *made)))
        ends = F.coalesce(F.col("_drop") != "false", F.lit(False))  # then other failures do not matter
        frame = frame.withColumn("_failed", F.when(~ends, failed))
        fails = F.col("_failed").isNotNull()
        moves = ~fails & ~ends & F.lit(bool(self._link.dst))
        when = F.from_json(F.col("_when") if "when" in made else F.lit("{}"), SELECTOR_RESULT)
        delay = retry_delay(self._link.retry, F.col("tries")).cast("double")

        def changed(name: str) -> Column:
            return F.when(moves, F.col(f"_{name}") if name in made else F.lit(None))

        return frame.select(
            "id",
            F.when(fails, "rollback").when(moves, "move").otherwise("commit").alias("outcome"),
            F.when(fails, F.concat(F.lit("link: no valid value from "), "_failed")).alias("reason"),
            changed("to").cast("string").alias("to"),
            changed("payload").cast("string").alias("payload"),
            changed("headers").cast("map<string,string>").alias("headers"),
            F.when(moves, F.timestamp_millis(when["mature"])).alias("mature"),
            F.when(fails, delay).when(moves, when["delay"].cast("double") / 1000).alias("delay"),
            F.when(moves, when["tries"]).alias("tries"),
        )

    def _changes(self) -> dict[str, Column]:
        """Return the changes by name; a Column is NULL if its expression fails."""
        made: dict[str, Column] = {}
        if self._link.dst:
            made["to"] = self._destination()
        if self._payload is not None:
            made["payload"] = changed_payload(self._payload)
        if self._headers:
            made["headers"] = changed_map(F.col("headers"), self._headers)
        if self._when:
            struct = F.struct(*(one.column.alias(part) for part, one in self._when.items()))
            kind = StructType([StructField(part, one.kind) for part, one in self._when.items()])
            made["when"] = selector_result(struct, kind)
        return made

    def _destination(self) -> Column:
        names = [one.queue for one in self._link.dst]
        if self._to is None:
            return F.lit(names[0])
        text = null_on_error(self._to.column.cast("string"))
        if isinstance(self._to.kind, IntegralType):
            number = text.cast("int")
            known = number.between(0, len(names) - 1)
            return F.when(known, F.element_at(F.array(*map(F.lit, names)), F.when(known, number + 1).otherwise(1)))
        return F.when(text.isin(names), text)


def _check_boolean(kind: DataType) -> None:
    if not isinstance(kind, BooleanType | NullType):
        raise GraphError(f"it is {kind.simpleString()}, but must be BOOLEAN")


def _check_destination(kind: DataType) -> None:
    if not isinstance(kind, StringType | IntegralType | NullType):
        raise GraphError(f"it is {kind.simpleString()}, but must be the name of a queue, or its number from 0")


def _check_part(part: str) -> Callable[[DataType], None]:
    return lambda kind: check_selector_type(StructType([StructField(part, kind)]))


# --- by a function --------------------------------------------------------------------------------


class _FunctionCalls:
    """Calls the function of a link for each message, in Spark's workers."""

    def __init__(self, link: Link) -> None:
        self._process = link.process
        self._queues = [one.queue for one in link.dst]
        self._retry = link.retry

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        process = load_function(self._process)
        freeze_gc()
        for batch in batches:
            rows = [self._call(process, one) for one in _decode_messages(batch)]
            yield pa.RecordBatch.from_pylist(rows, schema=SETTLE_ARROW_SCHEMA)

    def _call(self, process: LinkFunction, one: Message) -> dict[str, Any]:
        try:
            return {"id": one.id, **self._outcome(one, process(one))}
        except Exception as error:  # any error is a failure of this message only
            log.warning("message %s of queue %s is retried: %s", one.id, one.queue, error, exc_info=True)
            reason = clean_text(f"{type(error).__name__}: {error}"[:ERROR_LENGTH])
            delay = retry_delay(self._retry, one.tries)
            return {"id": one.id, "outcome": "rollback", "reason": reason, "delay": delay}

    def _outcome(self, one: Message, result: object) -> dict[str, Any]:
        if result is DROP or not self._queues:
            return {"outcome": "commit"}
        if result is None:
            result = Forward()
        if not isinstance(result, Forward):
            raise TypeError(f"the function of a link must return None, DROP or Forward(...), not {result!r}")
        made: dict[str, Any] = {"outcome": "move", "to": self._destination(result.to), "tries": result.tries}
        if not isinstance(result.payload, Unchanged):
            made["payload"] = dump_json(result.payload).decode()
        if result.headers is not None:
            headers = {**one.headers, **result.headers}
            check_id_and_headers(None, headers)
            made["headers"] = [(name, value) for name, value in headers.items() if value is not None]
        return {**made, "mature": result.mature, "delay": result.delay}

    def _destination(self, to: str | int | None) -> str:
        if to is None and len(self._queues) == 1:
            return self._queues[0]
        if isinstance(to, int) and not isinstance(to, bool) and 0 <= to < len(self._queues):
            return self._queues[to]
        if to in self._queues:
            return str(to)
        raise ValueError(f"to={to!r} is not one of the destinations {', '.join(self._queues)}")


def _decode_messages(batch: pa.RecordBatch) -> Iterator[Message]:
    """Yield the messages of a batch, with their JSON payloads decoded."""
    for row in batch.to_pylist():
        headers = {name: value for name, value in row["headers"] if value is not None}
        payload = decode(row["payload"].encode(), "json")
        yield Message(row["id"], row["queue"], payload, headers, row["mature"], row["tries"], row["pushed"])
