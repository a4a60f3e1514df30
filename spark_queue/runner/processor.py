"""One processor as a step between DataFrames: rows of its inputs in, messages for its outputs out.

Its rows come from `format("queue")` with the option `inputs`: a column for each input, a struct or NULL, and the
column `delivery_hash`. What its function makes of them are rows of one shape for every kind of function: a message,
with the queue that it goes to. These are written exactly once, so that a batch is visible as a whole or not at all.
Only functions that act by themselves are called on the driver: sinks on DataFrames, and what reads or writes queues
by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
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

from spark_queue.client import Queue
from spark_queue.errors import GraphError, near
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.model import Graph, Place, Processor
from spark_queue.graph.processor_function import Output, Process, error_message, sound
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.message import Message
from spark_queue.messages.payload import decode, of_json
from spark_queue.messages.values import check_texts
from spark_queue.options.queue_options import QueueOptions
from spark_queue.runner.selector import found
from spark_queue.spark import delivery_hash
from spark_queue.spark.schema import read_schema
from spark_queue.spark.spark_errors import failure_of
from spark_queue.spark.worker import settle_in

#: The names of the metrics that Spark observes of each batch: of what comes in, and of what goes out.
RECEIVED, MADE = "processor", "processed"

#: The header that tells where a message comes from, and the column that becomes it: JSON, `{"ns/queue": {"position":
#: …, "time": ms}}`, with all queues that it and what it was made of have gone through.
HEADER, PROVENANCE = "x-provenance", "provenance"

#: What a function makes, whatever kind it is.
_FIELDS = {
    "ns": "STRING",
    "queue": "STRING",
    "payload": "STRING",
    "headers": "MAP<STRING, STRING>",
    "mature": "TIMESTAMP",
    "delay": "DOUBLE",
    "tries": "INT",
    "id": "STRING",
}
MESSAGES = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())
_MESSAGE = f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in _FIELDS.items())}>"

_ARROW = pa.schema(
    [
        *((name, pa.string()) for name in ("ns", "queue", "payload")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("mature", pa.timestamp("us", tz="UTC")),
        ("delay", pa.float64()),
        ("tries", pa.int32()),
        ("id", pa.string()),
    ]
)

_HEADERS = "map<string,string>"
_TOLD = ("headers", "mature", "delay", "tries", "id")
_HOPS = "map<string,struct<position:string,time:bigint>>"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stores:
    """Where a graph has its queues: what travels to Spark's workers of it."""

    urls: Mapping[str, str] = field(repr=False)

    def queue(self, place: Place, consumer: str) -> Queue:
        """A client of a queue."""
        return Queue(self.urls[place.ns], place.queue, consumer=consumer)


class ProcessorRoute:
    """What a processor does, ready for any DataFrame of its inputs."""

    def __init__(self, name: str, processor: Processor, graph: Graph) -> None:
        self.name = name
        self.processor = processor
        self._provenance = graph.provenance
        self._function = _Function(name, processor, graph.system)
        urls = {ns: one.url for ns, one in graph.namespaces.items()}
        self._hands = Hands(name, processor, Stores(urls))

    @classmethod
    def of(
        cls, spark: SparkSession, name: str, processor: Processor, graph: Graph, options: QueueOptions | None
    ) -> tuple[ProcessorRoute, list[Mistake]]:
        """The route, and what cannot work in it. `options`: those it reads with, where these are sound."""
        made = cls(name, processor, graph)
        try:
            made._function.load()
            if processor.inputs and options is not None:
                frame = made._seen(spark.createDataFrame([], read_schema(options)))
                if not made.acts:
                    made._messages(frame)
        except GraphError as error:
            return made, [Mistake(("processors", name, "fn"), str(error))]
        return made, []

    @property
    def acts(self) -> bool:
        """Whether its function is called on the driver, with a batch, for what it does and not for what it gives."""
        return self.processor.kind == "imperative" or (self.processor.kind == "sink" and not self.processor.rows)

    def messages(self, inputs: DataFrame) -> DataFrame:
        """The messages made of rows of the inputs, in columns `MESSAGES`. Each batch is observed."""
        made = self._messages(self._seen(inputs.observe(RECEIVED, F.count(F.lit(1)).alias("received"))))
        places = [*self.processor.dst, *([self.processor.errors] if self.processor.errors else [])]
        told = [
            F.count_if((F.col("ns") == one.ns) & (F.col("queue") == one.queue)).alias(f"pushed_{number}")
            for number, one in enumerate(places)
        ]
        return made.observe(MADE, *told) if told else made

    def act(self, write: Callable[[DataFrame], None]) -> Callable[[DataFrame, int], None]:
        """What is done with each batch on the driver. `write`: writes messages, in columns `MESSAGES`."""

        def on_batch(inputs: DataFrame, batch: int) -> None:
            if self.processor.kind == "sink":
                self._function.call(self._seen(inputs), delivery_hash=delivery_hash(inputs, batch))
                return
            work = _Rows(self._function, self.processor, self._hands)
            if self.processor.inputs:
                table = self._seen(inputs).toArrow()
                made = list(work(iter(table.to_batches())))
            else:
                made = [work.once()]
            if rows := pa.Table.from_batches(made, _ARROW) if made else None:
                write(inputs.sparkSession.createDataFrame(rows))

        return on_batch

    def close(self) -> None:
        """Give back what its function holds of queues that it reads by itself."""
        self._hands.close()

    # --- what the function sees -----------------------------------------------------------------------------------

    def _seen(self, inputs: DataFrame) -> DataFrame:
        """Rows without the messages that do not pass, and with where they come from."""
        names = list(self.processor.inputs)
        if self.processor.types or self.processor.topics:
            kept = {name: F.when(self._passes(inputs, name), F.col(_quoted(name))) for name in names}
            inputs = inputs.withColumns(kept).where(F.coalesce(*map(_quoted, names)).isNotNull())
        if self._provenance and not (self.acts and self.processor.kind == "sink"):
            inputs = inputs.withColumn(PROVENANCE, self._hops(inputs))
        return inputs

    def _passes(self, inputs: DataFrame, name: str) -> Column:
        """Whether a message has one of the types, and one of the topics."""
        one, kind = F.col(_quoted(name)), inputs.schema[name].dataType
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
            said = one["headers"][header]
            if header == "type":
                if json is not None:
                    said = F.coalesce(said, F.try_variant_get(json, "$.type", "string"))
                passes &= F.coalesce(said.isin(words), F.lit(False))
                continue
            listed = F.split(F.regexp_replace(said, r"\s+", ""), ",")
            if json is not None:
                field = F.try_variant_get(json, "$.topics", "array<string>")
                truths = F.try_variant_get(json, "$.topics", _HEADERS)
                true = F.map_keys(F.map_filter(truths, lambda _, value: value.isNotNull() & (value != "false")))
                word = F.try_variant_get(json, "$.topics", "string")
                # An object, a list, or a word: of what the payload says just one has this form.
                listed = F.coalesce(listed, true, field, F.array(word))
            wanted = F.array(*map(F.lit, words))
            passes &= F.coalesce(F.arrays_overlap(listed, wanted), F.lit(False))
        return passes

    def _hops(self, inputs: DataFrame) -> Column:
        """Where the messages of a row come from: what their headers tell, and their own queues."""
        hops = F.create_map().cast(_HOPS)
        for name, place in self.processor.inputs.items():
            one, kind = F.col(_quoted(name)), inputs.schema[name].dataType
            assert isinstance(kind, StructType)
            position = one["id"]
            if "position" in kind.names:
                position = F.coalesce(one["position"].cast("string"), position)
            own = F.struct(position.alias("position"), F.unix_millis(one["mature"]).alias("time"))
            before = F.coalesce(F.from_json(one["headers"][HEADER], _HOPS), F.create_map().cast(_HOPS))
            here = F.when(one.isNotNull(), F.create_map(F.lit(str(place)), own))
            for more in (F.when(one.isNotNull(), before), here):
                hops = _over(hops, F.coalesce(more, F.create_map().cast(_HOPS)))
        return F.to_json(hops)

    # --- what it makes --------------------------------------------------------------------------------------------

    def _messages(self, seen: DataFrame) -> DataFrame:
        if self.processor.rows:
            return seen.mapInArrow(_Rows(self._function, self.processor), MESSAGES)
        made = self._function.call(seen)
        if isinstance(made, Mapping):
            made = self._with_columns(seen, made)
        if not isinstance(made, DataFrame):
            raise GraphError(
                f"{self._function} returns {made!r}, which is neither a DataFrame nor a dict of Columns by output"
            )
        copies = []
        for name, place in self.processor.out.items():
            if name not in made.columns:
                hint = near(name, made.columns) or f"; it has {', '.join(made.columns)}"
                raise GraphError(f"{self._function} returns no column {name!r}, which is an output{hint}")
            copies.append(self._copy(made, name, place))
        return made.select(F.inline(F.array(*copies))).where("queue IS NOT NULL")

    def _with_columns(self, seen: DataFrame, made: Mapping[str, Any]) -> DataFrame:
        columns: dict[str, Column] = {}
        for name, one in made.items():
            if name not in self.processor.out:
                hint = near(name, self.processor.out) or f"; they are {', '.join(self.processor.out)}"
                raise GraphError(f"{self._function} returns {name!r}, which is not one of the outputs{hint}")
            columns[name] = one if isinstance(one, Column) else F.lit(one)
        missing = {name: F.lit(None).cast("string") for name in self.processor.out if name not in columns}
        try:
            return seen.withColumns(columns | missing)
        except PySparkException as error:
            raise GraphError(f"{self._function}: {failure_of(error).text}") from None

    def _copy(self, made: DataFrame, name: str, place: Place) -> Column:
        """The message for an output, NULL where there is none."""
        one, kind = F.col(_quoted(name)), made.schema[name].dataType
        parts: dict[str, Column] = {}
        payload, form = one, kind
        if isinstance(kind, StructType) and "payload" in kind.names and set(kind.names) <= {*_TOLD, *_READ}:
            payload, form = one["payload"], kind["payload"].dataType
            told = ("headers",) if "queue" in kind.names else _TOLD  # a message as it was read goes on as a new one
            parts = {part: one[part] for part in told if part in kind.names}
        headers = F.coalesce(parts.get("headers", F.lit(None)).cast(_HEADERS), F.create_map().cast(_HEADERS))
        if PROVENANCE in made.columns:
            others = F.map_filter(headers, lambda key, _: key != HEADER)
            headers = F.map_concat(others, F.create_map(F.lit(HEADER), F.col(PROVENANCE)))
        columns = {
            "ns": F.lit(place.ns),
            "queue": F.lit(place.queue),
            "payload": _as_json(payload, form, name),
            "headers": headers,
            **{part: parts.get(part, F.lit(None)) for part in _TOLD[1:]},
        }
        if "delay" in parts:
            columns["delay"] = _seconds(parts["delay"], kind)
        struct = F.struct(*(column.alias(part) for part, column in columns.items())).cast(_MESSAGE)
        return F.when(one.isNotNull(), struct)


#: The fields of a message as it is read.
_READ = ("id", "queue", "payload", "headers", "mature", "tries", "position")


def _as_json(payload: Column, kind: DataType, name: str) -> Column:
    """A payload of any type as JSON text."""
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
        "a map, an array, a VARIANT, bytes, a number or a truth value"
    )


def _seconds(delay: Column, message: DataType) -> Column:
    """A delay that is an interval, or a number of seconds, as a number."""
    assert isinstance(message, StructType)
    if isinstance(message["delay"].dataType, DayTimeIntervalType):
        return F.unix_millis(F.timestamp_seconds(F.lit(0)) + delay) / 1000
    return delay


def _over(hops: Column, more: Column) -> Column:
    """A map with the entries of another, which count where both have one."""
    return F.map_concat(F.map_filter(hops, lambda key, _: ~F.map_contains_key(more, key)), more)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# --- functions ----------------------------------------------------------------------------------------------------


class _Function:
    """The function of a processor, and what it knows: facts, which travel to Spark's workers."""

    def __init__(self, name: str, processor: Processor, system: Any) -> None:
        self._fn = processor.fn
        self._system = system
        errors = str(processor.errors) if processor.errors else None
        self._process = Process(name, processor.config(), processor.opts, {}, processor.delivery, errors)

    def __str__(self) -> str:
        return self._fn if isinstance(self._fn, str) else str(getattr(self._fn, "__qualname__", repr(self._fn)))

    def load(self) -> Callable[..., Any]:
        """The function. Raises `GraphError` where there is none."""
        return _named(self._fn) if isinstance(self._fn, str) else self._fn

    def process(self, **facts: Any) -> Process:
        """What the function is told beside its messages."""
        system = self._system
        if isinstance(system, str):
            system = _made_by(system)
        elif callable(system):
            system = system()
        return replace(self._process, system=system or {}, **facts)

    def call(self, frame: DataFrame, **facts: Any) -> Any:
        """What it makes of a DataFrame. Raises `GraphError` where that cannot be computed."""
        try:
            return self.load()(self.process(**facts), frame)
        except PySparkException as error:
            raise GraphError(f"{self}: {failure_of(error).text}") from error


@cache
def _named(name: str) -> Callable[..., Any]:
    return found(*name.split(":"))


@cache
def _made_by(name: str) -> Any:
    """What the functions of a graph share, made once in each process."""
    return _named(name)()


class Hands:
    """The queues that a function reads and writes by itself, opened when it is first called."""

    def __init__(self, name: str, processor: Processor, stores: Stores) -> None:
        self._name, self._stores = name, stores
        self._places = {"tailers": processor.tailers, "appenders": processor.appenders}
        self._open: dict[str, dict[str, Queue]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def queues(self) -> dict[str, dict[str, Queue]]:
        """Them, by `tailers` and `appenders` and by binding."""
        if not self._open:
            self._open = {
                kind: {binding: self._stores.queue(place, self._name) for binding, place in places.items()}
                for kind, places in self._places.items()
            }
        return self._open

    def close(self) -> None:
        """Give back what is held of them."""
        for queues in self._open.values():
            for one in queues.values():
                one.close()
        self._open = {}


class _Rows:
    """Calls a function for each row of messages, in Spark's workers or on the driver."""

    def __init__(self, function: _Function, processor: Processor, hands: Hands | None = None) -> None:
        self._function, self._hands = function, hands
        self._inputs = {name: str(one) for name, one in processor.inputs.items()}
        self._out, self._errors = processor.out, processor.errors

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function, process = self._function.load(), self._process()
        if self._hands is None:  # else this is no worker's process
            settle_in()
        for batch in batches:
            made: list[dict[str, Any]] = []
            columns = {name: _messages(batch.column(name)) for name in self._inputs}
            hashes = batch.column("delivery_hash").to_pylist()
            hops = batch.column(PROVENANCE).to_pylist() if PROVENANCE in batch.schema.names else [None] * len(hashes)
            for row, delivery in enumerate(hashes):
                messages = {name: one for name, column in columns.items() if (one := column[row]) is not None}
                made += self._row(function, replace(process, delivery_hash=delivery), messages, hops[row])
            yield pa.RecordBatch.from_pylist(made, schema=_ARROW)

    def once(self) -> pa.RecordBatch:
        """What it makes without any input."""
        return pa.RecordBatch.from_pylist(self._row(self._function.load(), self._process(), {}, None), schema=_ARROW)

    def _process(self) -> Process:
        return self._function.process(**(self._hands.queues() if self._hands is not None else {}))

    def _row(
        self, function: Callable[..., Any], process: Process, messages: Mapping[str, Message], hops: str | None
    ) -> list[dict[str, Any]]:
        """What a row becomes: messages for outputs, or one for the error queue."""
        concerned: Mapping[str, Any] = {self._inputs[name]: one for name, one in messages.items()}
        try:
            outputs = self._outputs(function(process, messages))
            made = []
            for name, one in outputs.items():
                concerned = {str(self._out[name]): one}
                made.append(_message(self._out[name], one, hops))
        except Exception as error:
            if self._errors is None:
                raise
            log.warning("processor %s: a row goes to %s: %s", process.id, self._errors, error, exc_info=True)
            told = error_message(process, error, concerned)
            return [_message(self._errors, Output(told), hops)]
        return made

    def _outputs(self, given: object) -> dict[str, Output]:
        if not self._out or given is None:  # what a sink gives does not matter
            return {}
        if not isinstance(given, Mapping):
            raise TypeError(
                f"{self._function} returns {given!r}, which is neither None nor a dict of messages by output"
            )
        made: dict[str, Output] = {}
        for name, one in given.items():
            if name not in self._out:
                hint = near(str(name), self._out) or f"; they are {', '.join(self._out)}"
                raise ValueError(f"{self._function} returns {name!r}, which is not one of the outputs{hint}")
            if one is not None:
                if isinstance(one, Message):
                    one = Output(one.payload, one.headers)
                made[name] = one if isinstance(one, Output) else Output(one)
        return made


def _message(place: Place, one: Output, hops: str | None) -> dict[str, Any]:
    headers = dict(one.headers) if hops is None else {**one.headers, HEADER: hops}
    check_texts(one.id, headers)
    return {
        "ns": place.ns,
        "queue": place.queue,
        "payload": sound(one).decode(),
        "headers": list(headers.items()),
        "mature": one.mature,
        "delay": one.delay,
        "tries": one.tries,
        "id": one.id,
    }


def _messages(column: pa.StructArray) -> list[Message | None]:
    """The messages of an input, with Python's payloads; `None` where there is none."""
    if not len(column):
        return []
    batch = pa.RecordBatch.from_arrays(column.flatten(), names=[one.name for one in column.type])
    payloads, kinds = of_json(batch.column("payload").cast(pa.binary()))
    facts = (batch.column(name).to_pylist() for name in ("id", "queue", "mature", "tries"))
    rows = zip(*facts, payloads.to_pylist(), kinds.to_pylist(), header_dicts(batch), strict=True)
    return [
        Message(id, queue, decode(bytes(payload), kind), headers, mature, tries) if id is not None else None
        for id, queue, mature, tries, payload, kind, headers in rows
    ]
