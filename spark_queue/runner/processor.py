"""A processor as a step between DataFrames: rows of its inputs in, messages for its outputs out.

The rows come from `format("queue")` with the option `inputs`. They have a column for each input, a
struct or NULL, and the column `delivery_hash`. Messages for outputs have the same columns for every
kind of function, with the queue that they go to. They are written exactly once, so that a batch is
visible as a whole or not at all.

Functions with side effects are called on the driver: sinks on DataFrames, and functions that read
or write queues by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    VariantType,
)

from spark_queue.errors import GraphError, did_you_mean
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.model import Graph, Place, Processor
from spark_queue.graph.parts import FieldPath
from spark_queue.options.queue_options import QueueOptions
from spark_queue.runner.processor_function import (
    MESSAGE_ARROW_SCHEMA,
    MESSAGE_COLUMNS,
    MESSAGE_STRUCT,
    PROVENANCE_COLUMN,
    PROVENANCE_HEADER,
    ProcessorFunction,
    RowCalls,
    SideQueues,
)
from spark_queue.runner.step import RunnableStep, Write
from spark_queue.spark import delivery_hash
from spark_queue.spark.schema import read_schema
from spark_queue.spark.spark_errors import failure_of
from spark_queue.stores.named import NamedStores

#: The names of the metrics that Spark observes of each batch: of its inputs, and of its outputs.
RECEIVED_METRICS, PUSHED_METRICS = "processor", "processed"

_HEADERS_TYPE = "map<string,string>"
_OUTPUT_FIELDS = ("headers", "mature", "delay", "tries", "id")
_PROVENANCE_TYPE = "map<string,struct<position:string,time:bigint>>"


class ProcessorStep(RunnableStep[Processor]):
    """A processor of a graph."""

    metrics = (RECEIVED_METRICS, PUSHED_METRICS)

    @property
    def source_field(self) -> str:
        return "alts" if self.step.alts else "in"

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        options = self.queue_options if readable else None
        self._compiled, mistakes = CompiledProcessor.compile(spark, self.name, self.step, self.graph, options)
        return mistakes

    def _source_options(self) -> dict[str, str]:
        inputs = {
            binding: {"queue": one.queue, "ns": one.ns, **({"mode": one.mode} if one.mode != "queue" else {})}
            for binding, one in self.step.inputs.items()
        }
        return {
            "urls": self._urls(dict.fromkeys(one.ns for one in self.step.sources)),
            "inputs": json.dumps(inputs),
            "combine": "alts" if self.step.alts else "zip",
        }

    @property
    def _parallel(self) -> int | None:
        return self.step.consumer.parallel or 1  # which keeps the order

    @property
    def source_queues(self) -> list[tuple[str, str | None]]:
        logs = {one.place for one in self.step.inputs.values() if one.mode == "log"}
        return [(self._url(one.ns), None if one in logs else one.queue) for one in self.step.sources]

    @property
    def store_url(self) -> str:
        return self._url((self.step.src or self.step.other_queues()[0]).ns)

    def _written_queues(self) -> Iterable[tuple[FieldPath, Place]]:
        bound = {"out": self.step.out, "tailers": self.step.tailers, "appenders": self.step.appenders}
        to: list[tuple[FieldPath, Place]] = [
            ((key, one), place) for key, places in bound.items() for one, place in places.items()
        ]
        return to + ([(("errors",), self.step.errors)] if self.step.errors else [])

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        options = self._push_options(
            exactly_once=True, on_bad_row="fail" if self.step.errors is None else "deadLetter"
        )
        return messages if self._compiled.runs_on_driver else self._compiled.output_messages(messages), options

    def on_batch(self, write: Write) -> Callable[[DataFrame, int], None] | None:
        return self._compiled.batch_function(write) if self._compiled.runs_on_driver else None

    def close(self) -> None:
        self._compiled.close()

    def batch_metrics(self, progress: Mapping[str, Any]) -> dict[str, Any] | None:
        rows = progress["numInputRows"]  # the only count of a function on the driver
        return ({"received": rows} if rows else {}) | (super().batch_metrics(progress) or {}) or None


class CompiledProcessor:
    """A processor that is ready to run on any DataFrame of its inputs."""

    def __init__(self, name: str, processor: Processor, graph: Graph) -> None:
        self.name = name
        self.processor = processor
        self._adds_provenance = graph.provenance
        self._function = ProcessorFunction(name, processor, graph.system)
        urls = {ns: one.url for ns, one in graph.namespaces.items()}
        self._side_queues = SideQueues(name, processor, NamedStores(urls))

    @classmethod
    def compile(
        cls, spark: SparkSession, name: str, processor: Processor, graph: Graph, options: QueueOptions | None
    ) -> tuple[CompiledProcessor, list[Mistake]]:
        """Return the compiled processor, and its mistakes.

        `options`: the options of its reader, or `None` if these have mistakes.
        """
        made = cls(name, processor, graph)
        try:
            made._function.load()
            if processor.inputs and options is not None:
                frame = made._prepare(spark.createDataFrame([], read_schema(options)))
                if not made.runs_on_driver:
                    made._call_function(frame)
        except GraphError as error:
            return made, [Mistake(("processors", name, "fn"), str(error))]
        return made, []

    @property
    def runs_on_driver(self) -> bool:
        """Whether its function is called on the driver with each batch, for its side effects."""
        return self.processor.kind == "imperative" or (self.processor.kind == "sink" and not self.processor.rows)

    def output_messages(self, inputs: DataFrame) -> DataFrame:
        """Return the messages made from rows of the inputs, in columns `MESSAGE_COLUMNS`.

        Each batch is observed. Raises `GraphError` if the function returns an invalid result.
        """
        made = self._call_function(
            self._prepare(inputs.observe(RECEIVED_METRICS, F.count(F.lit(1)).alias("received")))
        )
        places = [*self.processor.dst, *([self.processor.errors] if self.processor.errors else [])]
        metrics = [
            F.count_if((F.col("ns") == one.ns) & (F.col("queue") == one.queue)).alias(f"pushed_{number}")
            for number, one in enumerate(places)
        ]
        return made.observe(PUSHED_METRICS, *metrics) if metrics else made

    def batch_function(self, write: Callable[[DataFrame], None]) -> Callable[[DataFrame, int], None]:
        """Return the function that processes a batch on the driver.

        `write`: writes messages, in columns `MESSAGE_COLUMNS`.
        """

        def on_batch(inputs: DataFrame, batch: int) -> None:
            if self.processor.kind == "sink":
                self._function.call(self._prepare(inputs), delivery_hash=delivery_hash(inputs, batch))
                return
            work = RowCalls(self._function, self.processor, self._side_queues)
            if self.processor.inputs:
                table = self._prepare(inputs).toArrow()
                made = list(work(iter(table.to_batches())))
            else:
                made = [work.call_without_input()]
            if rows := pa.Table.from_batches(made, MESSAGE_ARROW_SCHEMA) if made else None:
                write(inputs.sparkSession.createDataFrame(rows))

        return on_batch

    def close(self) -> None:
        """Release the messages of queues that its function reads by itself."""
        self._side_queues.close()

    # --- what the function sees -----------------------------------------------------------------------------------

    def _prepare(self, inputs: DataFrame) -> DataFrame:
        """Return the rows with the messages that pass the filters, and with their provenance."""
        names = list(self.processor.inputs)
        if self.processor.types or self.processor.topics:
            kept = {name: F.when(self._passes(inputs, name), F.col(_quote(name))) for name in names}
            inputs = inputs.withColumns(kept).where(F.coalesce(*map(_quote, names)).isNotNull())
        if self._adds_provenance and not (self.runs_on_driver and self.processor.kind == "sink"):
            inputs = inputs.withColumn(PROVENANCE_COLUMN, self._merge_provenance(inputs))
        return inputs

    def _passes(self, inputs: DataFrame, name: str) -> Column:
        """Return a Column: whether a message has one of the types, and one of the topics."""
        one, kind = F.col(_quote(name)), inputs.schema[name].dataType
        assert isinstance(kind, StructType)
        json: Column | None = None
        if isinstance(kind["payload"].dataType, VariantType):
            json = one["payload"]
        elif isinstance(kind["payload"].dataType, StringType):
            json = F.try_parse_json(one["payload"])
        passes = F.lit(True)
        for words, header in ((self.processor.types, "type"), (self.processor.topics, "topics")):
            if not words:
                continue
            texts = one["headers"][header]
            if header == "type":
                if json is not None:
                    texts = F.coalesce(texts, F.try_variant_get(json, "$.type", "string"))
                passes &= F.coalesce(texts.isin(words), F.lit(False))
                continue
            listed = F.split(F.regexp_replace(texts, r"\s+", ""), ",")
            if json is not None:
                field = F.try_variant_get(json, "$.topics", "array<string>")
                truths = F.try_variant_get(json, "$.topics", _HEADERS_TYPE)
                true = F.map_keys(F.map_filter(truths, lambda _, value: value.isNotNull() & (value != "false")))
                word = F.try_variant_get(json, "$.topics", "string")
                # The field is an object, a list, or a word: only one of these is not NULL.
                listed = F.coalesce(listed, true, field, F.array(word))
            wanted = F.array(*map(F.lit, words))
            passes &= F.coalesce(F.arrays_overlap(listed, wanted), F.lit(False))
        return passes

    def _merge_provenance(self, inputs: DataFrame) -> Column:
        """Return the provenance of a row as JSON: the queues of its messages, and those before."""
        hops = F.create_map().cast(_PROVENANCE_TYPE)
        for name, place in self.processor.inputs.items():
            one, kind = F.col(_quote(name)), inputs.schema[name].dataType
            assert isinstance(kind, StructType)
            position = one["id"]
            if "position" in kind.names:
                position = F.coalesce(one["position"].cast("string"), position)
            own = F.struct(position.alias("position"), F.unix_millis(one["mature"]).alias("time"))
            before = F.coalesce(
                F.from_json(one["headers"][PROVENANCE_HEADER], _PROVENANCE_TYPE),
                F.create_map().cast(_PROVENANCE_TYPE),
            )
            here = F.when(one.isNotNull(), F.create_map(F.lit(str(place)), own))
            for more in (F.when(one.isNotNull(), before), here):
                hops = _merge_maps(hops, F.coalesce(more, F.create_map().cast(_PROVENANCE_TYPE)))
        return F.to_json(hops)

    # --- what it makes --------------------------------------------------------------------------------------------

    def _call_function(self, rows: DataFrame) -> DataFrame:
        if self.processor.rows:
            return rows.mapInArrow(RowCalls(self._function, self.processor), MESSAGE_COLUMNS)
        made = self._function.call(rows)
        if isinstance(made, Mapping):
            made = self._with_columns(rows, made)
        if not isinstance(made, DataFrame):
            raise GraphError(
                f"{self._function} returns {made!r}, which is neither a DataFrame nor a dict of Columns by output"
            )
        copies = []
        for name, place in self.processor.out.items():
            if name not in made.columns:
                hint = did_you_mean(name, made.columns) or f"; it has {', '.join(made.columns)}"
                raise GraphError(f"{self._function} returns no column {name!r}, which is an output{hint}")
            copies.append(self._output_message(made, name, place))
        return made.select(F.inline(F.array(*copies))).where("queue IS NOT NULL")

    def _with_columns(self, rows: DataFrame, made: Mapping[str, Any]) -> DataFrame:
        columns: dict[str, Column] = {}
        for name, one in made.items():
            if name not in self.processor.out:
                hint = did_you_mean(name, self.processor.out) or f"; they are {', '.join(self.processor.out)}"
                raise GraphError(f"{self._function} returns {name!r}, which is not one of the outputs{hint}")
            columns[name] = one if isinstance(one, Column) else F.lit(one)
        missing = {name: F.lit(None).cast("string") for name in self.processor.out if name not in columns}
        try:
            return rows.withColumns(columns | missing)
        except PySparkException as error:
            raise GraphError(f"{self._function}: {failure_of(error).text}") from None

    def _output_message(self, made: DataFrame, name: str, place: Place) -> Column:
        """Return the message for an output, NULL if there is none.

        Raises `GraphError` if the type of its payload has no form in JSON.
        """
        one, kind = F.col(_quote(name)), made.schema[name].dataType
        parts: dict[str, Column] = {}
        payload, form = one, kind
        if (
            isinstance(kind, StructType)
            and "payload" in kind.names
            and set(kind.names) <= {*_OUTPUT_FIELDS, *_READ_FIELDS}
        ):
            payload, form = one["payload"], kind["payload"].dataType
            fields = (
                ("headers",) if "queue" in kind.names else _OUTPUT_FIELDS
            )  # an input is passed on as a new message
            parts = {part: one[part] for part in fields if part in kind.names}
        headers = F.coalesce(
            parts.get("headers", F.lit(None)).cast(_HEADERS_TYPE), F.create_map().cast(_HEADERS_TYPE)
        )
        if PROVENANCE_COLUMN in made.columns:
            others = F.map_filter(headers, lambda key, _: key != PROVENANCE_HEADER)
            headers = F.map_concat(others, F.create_map(F.lit(PROVENANCE_HEADER), F.col(PROVENANCE_COLUMN)))
        columns = {
            "ns": F.lit(place.ns),
            "queue": F.lit(place.queue),
            "payload": _json_text(payload, form, name),
            "headers": headers,
            **{part: parts.get(part, F.lit(None)) for part in _OUTPUT_FIELDS[1:]},
        }
        if "delay" in parts:
            columns["delay"] = _to_seconds(parts["delay"], kind)
        struct = F.struct(*(column.alias(part) for part, column in columns.items())).cast(MESSAGE_STRUCT)
        return F.when(one.isNotNull(), struct)


#: The fields of a message that was read.
_READ_FIELDS = ("id", "queue", "payload", "headers", "mature", "tries", "position")


def _json_text(payload: Column, kind: DataType, name: str) -> Column:
    """Return a payload as JSON text. Raises `GraphError` if its type has no form in JSON."""
    if isinstance(kind, StringType):
        return payload
    if isinstance(kind, StructType | MapType | ArrayType | VariantType):
        return F.to_json(payload)
    if isinstance(kind, BinaryType):
        start, end = F.lit('{"$binary":{"base64":"'), F.lit('","subType":"00"}}')
        return F.concat(start, F.base64(payload), end)
    if isinstance(kind, NumericType | BooleanType | NullType):
        return payload.cast("string")
    raise GraphError(
        f"its output {name!r} is {kind.simpleString()}, which has no form in JSON: return JSON text, a struct, "
        "a map, an array, a VARIANT, bytes, a number or a boolean"
    )


def _to_seconds(delay: Column, message: DataType) -> Column:
    """Return a delay, which is an interval or a number of seconds, as a number of seconds."""
    assert isinstance(message, StructType)
    if isinstance(message["delay"].dataType, DayTimeIntervalType):
        return F.unix_millis(F.timestamp_seconds(F.lit(0)) + delay) / 1000
    return delay


def _merge_maps(hops: Column, more: Column) -> Column:
    """Return a map with the entries of another one added, which win."""
    return F.map_concat(F.map_filter(hops, lambda key, _: ~F.map_contains_key(more, key)), more)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
