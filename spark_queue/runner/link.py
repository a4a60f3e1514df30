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
from pyspark.sql.types import BooleanType, DataType, IntegralType, NullType, StringType, StructField, StructType

from spark_queue.errors import GraphError
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.link_function import DROP, Forward, LinkFunction, Unchanged
from spark_queue.graph.model import Link, Retry
from spark_queue.messages.json_text import cleaned, dump_json
from spark_queue.messages.message import Message
from spark_queue.messages.payload import decode
from spark_queue.messages.values import check_texts
from spark_queue.runner.selector import (
    ANSWER,
    JSON_COLUMN,
    SEEN,
    TELLS,
    Maker,
    answer,
    changed_map,
    changed_payload,
    check_selector,
    found,
    guarded,
)
from spark_queue.runner.step import RunnableStep
from spark_queue.spark.worker import settle_in

#: The name of the metrics that Spark observes of each batch.
LINK_METRICS = "link"

#: The columns of `operation=settle`.
SETTLE_COLUMNS = (
    "id STRING, outcome STRING, reason STRING, to STRING, payload STRING, headers MAP<STRING, STRING>, "
    "mature TIMESTAMP, delay DOUBLE, tries INT"
)

_ARROW = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "outcome", "reason", "to", "payload")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("mature", pa.timestamp("us", tz="UTC")),
        ("delay", pa.float64()),
        ("tries", pa.int32()),
    ]
)

#: The maximum length of an error in the headers of a message.
ERROR_LENGTH = 500

log = logging.getLogger(__name__)


class LinkStep(RunnableStep[Link]):
    """A link of a graph."""

    metrics = (LINK_METRICS,)

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        self._route, mistakes = LinkRoute.of(spark, self.name, self.step)
        return mistakes

    @property
    def moves(self) -> bool:
        return self._in_one_database()

    def _refused_source(self) -> str:
        if self.step.dst and not self.moves:
            return "its database cannot move messages in one step: a link needs MongoDB with layout=pl-mongo"
        return ""

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        return self._route.outcomes(messages), self._settle()


class LinkRoute:
    """A link that is ready to run on any DataFrame of messages."""

    def __init__(self, name: str, link: Link, told: Callable[[DataFrame], DataFrame]) -> None:
        self.name = name
        self.link = link
        self._told = told

    @classmethod
    def of(cls, spark: SparkSession, name: str, link: Link) -> tuple[LinkRoute, list[Mistake]]:
        """Return the compiled link, and its mistakes."""
        if link.process is None:
            mistakes: list[Mistake] = []
            expressions = _Expressions(spark, name, link, mistakes)
            return cls(name, link, expressions.told), mistakes
        try:
            if isinstance(link.process, str):
                found(*link.process.split(":"))
        except GraphError as error:
            return cls(name, link, lambda frame: frame), [Mistake(("links", name, "process"), str(error))]
        work = _Work(link)
        return cls(name, link, lambda frame: frame.mapInArrow(work, SETTLE_COLUMNS)), []

    def outcomes(self, messages: DataFrame) -> DataFrame:
        """Return the rows that settle these messages, in the columns of `operation=settle`.

        Each batch is observed, under `LINK_METRICS`.
        """
        headers = F.coalesce("headers", F.create_map().cast("map<string,string>")).alias("headers")
        told = self._told(messages.select("id", "queue", "payload", headers, "mature", "tries"))
        outcome, to = F.col("outcome"), F.col("to")
        return told.observe(
            LINK_METRICS,
            F.count(F.lit(1)).alias("received"),
            *(F.count_if(to == one.queue).alias(f"pushed_{n}") for n, one in enumerate(self.link.dst)),
            F.count_if(outcome == "commit").alias("done"),
            F.count_if(outcome == "rollback").alias("again"),
        )


def pause(retry: Retry, tries: Any) -> Any:
    """Return the seconds until a retry, after `tries` earlier failures: the formula of keuss."""
    return tries * retry.factor + retry.base


# --- by expressions -------------------------------------------------------------------------------------------------


class _Expressions:
    """The compiled expressions of a link."""

    def __init__(self, spark: SparkSession, name: str, link: Link, mistakes: list[Mistake]) -> None:
        maker = Maker(spark.createDataFrame([], SEEN), ("links", name), mistakes)
        self._link = link
        self._drop = maker.made(link.drop, "drop", check=_check_truth)
        self._to = maker.made(link.to, "to", check=_check_place)
        self._payload = maker.made(link.set.payload, "set", "payload")
        self._headers = maker.all_made(link.set.headers, "set", "headers")
        self._when = {
            part: made
            for part in TELLS
            if (made := maker.made(getattr(link.set, part), "set", part, check=_check_part(part))) is not None
        }

    def told(self, messages: DataFrame) -> DataFrame:
        """Return the rows that settle these messages."""
        state = F.create_map().cast("map<string,string>")
        frame = messages.withColumns({"state": state, JSON_COLUMN: F.try_parse_json("payload")})
        drop = F.lit("false") if self._drop is None else answer(self._drop.made, self._drop.kind)
        made = self._changes()
        frame = frame.withColumns({"_drop": drop, **{f"_{name}": one for name, one in made.items()}})
        failed = F.coalesce(*(F.when(F.col(f"_{name}").isNull(), name) for name in ("drop", *made)))
        ends = F.coalesce(F.col("_drop") != "false", F.lit(False))  # then other failures do not matter
        frame = frame.withColumn("_failed", F.when(~ends, failed))
        again = F.col("_failed").isNotNull()
        moves = ~again & ~ends & F.lit(bool(self._link.dst))
        nothing = F.lit(None)
        when = F.from_json(F.col("_when") if "when" in made else F.lit("{}"), ANSWER)
        later = pause(self._link.retry, F.col("tries")).cast("double")

        def of(name: str) -> Column:
            return F.when(moves, F.col(f"_{name}") if name in made else nothing)

        return frame.select(
            "id",
            F.when(again, "rollback").when(moves, "move").otherwise("commit").alias("outcome"),
            F.when(again, F.concat(F.lit("link: no valid value from "), "_failed")).alias("reason"),
            of("to").cast("string").alias("to"),
            of("payload").cast("string").alias("payload"),
            of("headers").cast("map<string,string>").alias("headers"),
            F.when(moves, F.timestamp_millis(when["mature"])).alias("mature"),
            F.when(again, later).when(moves, when["delay"].cast("double") / 1000).alias("delay"),
            F.when(moves, when["tries"]).alias("tries"),
        )

    def _changes(self) -> dict[str, Column]:
        """Return the changes by name; a Column is NULL if its expression fails."""
        made: dict[str, Column] = {}
        if self._link.dst:
            made["to"] = self._place()
        if self._payload is not None:
            made["payload"] = changed_payload(self._payload.made, self._payload.kind)
        if self._headers:
            made["headers"] = changed_map(F.col("headers"), self._headers)
        if self._when:
            struct = F.struct(*(one.made.alias(part) for part, one in self._when.items()))
            kind = StructType([StructField(part, one.kind) for part, one in self._when.items()])
            made["when"] = answer(struct, kind)
        return made

    def _place(self) -> Column:
        names = [one.queue for one in self._link.dst]
        if self._to is None:
            return F.lit(names[0])
        text = guarded(self._to.made.cast("string"))
        if isinstance(self._to.kind, IntegralType):
            number = text.cast("int")
            known = number.between(0, len(names) - 1)
            return F.when(known, F.element_at(F.array(*map(F.lit, names)), F.when(known, number + 1).otherwise(1)))
        return F.when(text.isin(names), text)


def _check_truth(kind: DataType) -> None:
    if not isinstance(kind, BooleanType | NullType):
        raise GraphError(f"it is {kind.simpleString()}, but must be BOOLEAN")


def _check_place(kind: DataType) -> None:
    if not isinstance(kind, StringType | IntegralType | NullType):
        raise GraphError(f"it is {kind.simpleString()}, but must be the name of a queue, or its number from 0")


def _check_part(part: str) -> Callable[[DataType], None]:
    return lambda kind: check_selector(StructType([StructField(part, kind)]))


# --- by a function --------------------------------------------------------------------------------------------------


class _Work:
    """Calls the function of a link for each message, in Spark's workers."""

    def __init__(self, link: Link) -> None:
        self._process = link.process
        self._queues = [one.queue for one in link.dst]
        self._retry = link.retry

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        process = found(*self._process.split(":")) if isinstance(self._process, str) else self._process
        settle_in()
        for batch in batches:
            told = [self._told(process, one) for one in _messages(batch)]
            yield pa.RecordBatch.from_pylist(told, schema=_ARROW)

    def _told(self, process: LinkFunction, one: Message) -> dict[str, Any]:
        try:
            return {"id": one.id, **self._answer(one, process(one))}
        except Exception as error:  # any error is a failure of this message only
            log.warning("message %s of queue %s is retried: %s", one.id, one.queue, error, exc_info=True)
            reason = cleaned(f"{type(error).__name__}: {error}"[:ERROR_LENGTH])
            return {"id": one.id, "outcome": "rollback", "reason": reason, "delay": pause(self._retry, one.tries)}

    def _answer(self, one: Message, said: object) -> dict[str, Any]:
        if said is DROP or not self._queues:
            return {"outcome": "commit"}
        if said is None:
            said = Forward()
        if not isinstance(said, Forward):
            raise TypeError(f"the function of a link must return None, DROP or Forward(...), not {said!r}")
        made: dict[str, Any] = {"outcome": "move", "to": self._queue(said.to), "tries": said.tries}
        if not isinstance(said.payload, Unchanged):
            made["payload"] = dump_json(said.payload).decode()
        if said.headers is not None:
            headers = {**one.headers, **said.headers}
            check_texts(None, headers)
            made["headers"] = [(name, value) for name, value in headers.items() if value is not None]
        return {**made, "mature": said.mature, "delay": said.delay}

    def _queue(self, to: str | int | None) -> str:
        if to is None and len(self._queues) == 1:
            return self._queues[0]
        if isinstance(to, int) and not isinstance(to, bool) and 0 <= to < len(self._queues):
            return self._queues[to]
        if to in self._queues:
            return str(to)
        raise ValueError(f"to={to!r} is not one of the destinations {', '.join(self._queues)}")


def _messages(batch: pa.RecordBatch) -> Iterator[Message]:
    """Yield the messages of a batch, with their JSON payloads decoded."""
    for row in batch.to_pylist():
        headers = {name: value for name, value in row["headers"] if value is not None}
        payload = decode(row["payload"].encode(), "json")
        yield Message(row["id"], row["queue"], payload, headers, row["mature"], row["tries"])
