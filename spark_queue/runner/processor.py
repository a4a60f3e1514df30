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
from collections.abc import Callable, Iterator, Mapping
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
    MESSAGE_TYPE,
    PROVENANCE_COLUMN,
    PROVENANCE_HEADER,
    ProcessorFunction,
    RowCalls,
    SideQueues,
)
from spark_queue.runner.selector import with_header
from spark_queue.runner.step import RunnableStep, Write
from spark_queue.spark import delivery_hash
from spark_queue.spark.schema import read_schema
from spark_queue.spark.spark_errors import failure_of
from spark_queue.stores.named import NamedStores

#: The names of the metrics that Spark observes of each batch: of its inputs, and of its outputs.
RECEIVED_METRICS, PUSHED_METRICS = "processor", "processed"

_HEADERS_TYPE = "map<string,string>"

#: The fields of a message for an output beside its payload, and those of any message.
_OUTPUT_FIELDS = ("headers", "mature", "delay", "tries", "id")
_MESSAGE_FIELDS = {"payload", "queue", "position", *_OUTPUT_FIELDS}

_PROVENANCE_TYPE = "map<string,struct<position:string,time:bigint>>"


class ProcessorStep(RunnableStep[Processor]):
    """A processor of a graph."""

    metrics = (RECEIVED_METRICS, PUSHED_METRICS)

    @property
    def source_field(self) -> str:
        return "alts" if self.step.alts else "in"

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        self._compiled = CompiledProcessor(self.name, self.step, self.graph)
        try:
            self._compiled.check(spark, self.queue_options if readable else None)
        except GraphError as error:
            return [Mistake(("processors", self.name, "fn"), str(error))]
        return []

    def _source_options(self) -> dict[str, str]:
        inputs = {
            binding: {"queue": one.queue, "ns": one.ns, **({"mode": one.mode} if one.mode != "queue" else {})}
            for binding, one in self.step.inputs.items()
        }
        return {
            "urls": self._urls(self.step.sources),
            "inputs": json.dumps(inputs),
            "combine": "alts" if self.step.alts else "zip",
            "numPartitions": "1",  # by default, which keeps the order
        }

    @property
    def source_queues(self) -> list[tuple[str, str | None]]:
        logs = {one.place for one in self.step.inputs.values() if one.mode == "log"}
        return [(self._url(one.ns), None if one in logs else one.queue) for one in self.step.sources]

    def _written_queues(self) -> Iterator[tuple[FieldPath, Place]]:
        bound = {"out": self.step.out, "tailers": self.step.tailers, "appenders": self.step.appenders}
        for key, places in bound.items():
            for name, place in places.items():
                yield (key, name), place
        if self.step.errors:
            yield ("errors",), self.step.errors

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        options = self._push_options(exactly_once=True, on_bad_row="deadLetter" if self.step.errors else "fail")
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

    def check(self, spark: SparkSession, options: QueueOptions | None) -> None:
        """Raise `GraphError` if its function is missing, or cannot work on its inputs.

        `options`: the options of its reader, or `None` if it has none, or these have mistakes.
        """
        self._function.load()
        if options is not None:
            frame = self._prepare(spark.createDataFrame([], read_schema(options)))
            if not self.runs_on_driver:
                self._call_function(frame)

    @property
    def runs_on_driver(self) -> bool:
        """Whether its function is called on the driver with each batch, for its side effects."""
        return self.processor.kind == "imperative" or (self.processor.kind == "sink" and not self.processor.rows)

    def output_messages(self, inputs: DataFrame) -> DataFrame:
        """Return the messages made from rows of the inputs, in the columns of `MESSAGE_TYPE`.

        Each batch is observed. Raises `GraphError` if the function returns an invalid result.
        """
        observed = inputs.observe(RECEIVED_METRICS, F.count(F.lit(1)).alias("received"))
        made = self._call_function(self._prepare(observed))
        metrics = [
            F.count_if((F.col("ns") == one.ns) & (F.col("queue") == one.queue)).alias(f"pushed_{number}")
            for number, one in enumerate(self.processor.written_queues)
        ]
        return made.observe(PUSHED_METRICS, *metrics) if metrics else made

    def batch_function(self, write: Callable[[DataFrame], None]) -> Callable[[DataFrame, int], None]:
        """Return the function that processes a batch on the driver.

        `write`: writes messages, in the columns of `MESSAGE_TYPE`.
        """

        def on_batch(inputs: DataFrame, batch: int) -> None:
            if self.processor.kind == "sink":
                self._function.call(self._prepare(inputs), delivery_hash=delivery_hash(inputs, batch))
                return
            work = RowCalls(self._function, self.processor, self._side_queues)
            if self.processor.inputs:
                made = list(work(iter(self._prepare(inputs).toArrow().to_batches())))
            else:
                made = [work.call_without_input()]
            if rows := pa.Table.from_batches(made, MESSAGE_ARROW_SCHEMA):
                write(inputs.sparkSession.createDataFrame(rows))

        return on_batch

    def close(self) -> None:
        """Release the messages of queues that its function reads by itself."""
        self._side_queues.close()

    # --- what the function sees -------------------------------------------------------------------

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
        if self.processor.types:
            own = one["headers"]["type"]
            if json is not None:
                own = F.coalesce(own, F.try_variant_get(json, "$.type", "string"))
            passes &= F.coalesce(own.isin(self.processor.types), F.lit(False))
        if self.processor.topics:
            listed = F.split(F.regexp_replace(one["headers"]["topics"], r"\s+", ""), ",")
            if json is not None:
                field = F.try_variant_get(json, "$.topics", "array<string>")
                truths = F.try_variant_get(json, "$.topics", _HEADERS_TYPE)
                true = F.map_keys(F.map_filter(truths, lambda _, value: value.isNotNull() & (value != "false")))
                word = F.try_variant_get(json, "$.topics", "string")
                # The field is an object, a list, or a word: only one of these is not NULL.
                listed = F.coalesce(listed, true, field, F.array(word))
            wanted = F.array(*map(F.lit, self.processor.topics))
            passes &= F.coalesce(F.arrays_overlap(listed, wanted), F.lit(False))
        return passes

    def _merge_provenance(self, inputs: DataFrame) -> Column:
        """Return the provenance of a row as JSON: the queues of its messages, and those before."""
        nothing = hops = F.create_map().cast(_PROVENANCE_TYPE)
        for name, place in self.processor.inputs.items():
            one, kind = F.col(_quote(name)), inputs.schema[name].dataType
            assert isinstance(kind, StructType)
            position = one["id"]
            if "position" in kind.names:
                position = F.coalesce(one["position"].cast("string"), position)
            own = F.struct(position.alias("position"), F.unix_millis(one["mature"]).alias("time"))
            before = F.from_json(one["headers"][PROVENANCE_HEADER], _PROVENANCE_TYPE)
            for more in (before, F.create_map(F.lit(str(place)), own)):
                hops = _merge_maps(hops, F.coalesce(F.when(one.isNotNull(), more), nothing))
        return F.to_json(hops)

    # --- what it makes ----------------------------------------------------------------------------

    def _call_function(self, rows: DataFrame) -> DataFrame:
        if self.processor.rows:
            return rows.mapInArrow(RowCalls(self._function, self.processor), MESSAGE_TYPE)
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
        parts = dict.fromkeys(_OUTPUT_FIELDS, F.lit(None))
        payload, form = one, kind
        if isinstance(kind, StructType) and _is_message(kind):
            payload, form = one["payload"], kind["payload"].dataType
            # An input is passed on as a new message.
            fields = ("headers",) if "queue" in kind.names else _OUTPUT_FIELDS
            parts |= {part: one[part] for part in fields if part in kind.names}
            in_interval = "delay" in kind.names and isinstance(kind["delay"].dataType, DayTimeIntervalType)
            if in_interval and "queue" not in kind.names:
                parts["delay"] = F.unix_millis(F.timestamp_seconds(F.lit(0)) + one["delay"]) / 1000
        headers = F.coalesce(parts["headers"].cast(_HEADERS_TYPE), F.create_map().cast(_HEADERS_TYPE))
        if PROVENANCE_COLUMN in made.columns:
            headers = with_header(headers, PROVENANCE_HEADER, F.col(PROVENANCE_COLUMN))
        columns = {"ns": F.lit(place.ns), "queue": F.lit(place.queue), "payload": _json_text(payload, form, name)}
        columns |= parts | {"headers": headers}
        struct = F.struct(*(column.alias(part) for part, column in columns.items())).cast(MESSAGE_TYPE.simpleString())
        return F.when(one.isNotNull(), struct)


def _is_message(kind: StructType) -> bool:
    """Return whether a struct is a message: one that an input has, or one for an output.

    Only those of inputs have `queue`, and then also `pushed`. Else that is a field of a payload.
    """
    known = _MESSAGE_FIELDS | {"pushed"} if "queue" in kind.names else _MESSAGE_FIELDS
    return "payload" in kind.names and known.issuperset(kind.names)


def _json_text(payload: Column, kind: DataType, name: str) -> Column:
    """Return a payload as JSON text. Raises `GraphError` if its type has no form in JSON."""
    if isinstance(kind, StructType | MapType | ArrayType | VariantType):
        return F.to_json(payload)
    if isinstance(kind, BinaryType):
        start, end = F.lit('{"$binary":{"base64":"'), F.lit('","subType":"00"}}')
        return F.concat(start, F.base64(payload), end)
    if isinstance(kind, StringType | NumericType | BooleanType | NullType):
        return payload.cast("string")
    raise GraphError(
        f"its output {name!r} is {kind.simpleString()}, which has no form in JSON: return JSON text, a struct, "
        "a map, an array, a VARIANT, bytes, a number or a boolean"
    )


def _merge_maps(hops: Column, more: Column) -> Column:
    """Return a map with the entries of another one added, which win."""
    return F.map_concat(F.map_filter(hops, lambda key, _: ~F.map_contains_key(more, key)), more)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
