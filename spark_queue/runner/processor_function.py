"""The function of a processor: its context, and its calls for rows, in workers or on the driver."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, IntegerType, MapType, StringType, StructField, StructType, TimestampType

from spark_queue.client import Queue
from spark_queue.errors import GraphError, did_you_mean
from spark_queue.graph.model import Place, Processor
from spark_queue.graph.processor_function import Output, ProcessorContext, error_message
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.message import Message
from spark_queue.messages.payload import as_json, decode, encode, from_json
from spark_queue.messages.value_errors import check_fields
from spark_queue.runner.selector import load_function
from spark_queue.spark.schema import arrow_schema
from spark_queue.spark.spark_errors import failure_of
from spark_queue.spark.worker import freeze_gc
from spark_queue.stores.named import NamedStores

#: The header with the origin of a message, and the column that becomes it. It is JSON,
#: `{"ns/queue": {"position": …, "time": ms}}`, with all queues that the message and its inputs have
#: gone through.
PROVENANCE_HEADER, PROVENANCE_COLUMN = "x-provenance", "provenance"

#: The columns of the messages that a function makes.
MESSAGE_TYPE = StructType(
    [
        *(StructField(name, StringType()) for name in ("ns", "queue", "payload")),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("mature", TimestampType()),
        StructField("delay", DoubleType()),
        StructField("tries", IntegerType()),
        StructField("id", StringType()),
    ]
)
MESSAGE_ARROW_SCHEMA = arrow_schema(MESSAGE_TYPE)

#: The functions that are the `system` of a graph, and their results in this process, by key.
_system_functions: dict[str, Callable[[], Any]] = {}
_systems: dict[str, Any] = {}
_systems_lock = threading.Lock()

log = logging.getLogger(__name__)


class ProcessorFunction:
    """The function of a processor with its context; it can be pickled for Spark's workers."""

    def __init__(self, name: str, processor: Processor, system: Any) -> None:
        self._fn = processor.fn
        self._system = system
        self._system_key = _system_key(system) if callable(system) else system
        errors = str(processor.errors) if processor.errors else None
        self._context = ProcessorContext(name, processor.config(), processor.opts, {}, processor.delivery, errors)

    def __str__(self) -> str:
        return self._fn if isinstance(self._fn, str) else str(getattr(self._fn, "__qualname__", repr(self._fn)))

    def load(self) -> Callable[..., Any]:
        """Return the function. Raises `GraphError` if it cannot be imported."""
        return load_function(self._fn)

    def context(self, **facts: Any) -> ProcessorContext:
        """Return the context of a call, with these fields.

        A `system` that is a function is called once in each process.
        """
        system = self._system
        if isinstance(system, str) or callable(system):
            with _systems_lock:
                if self._system_key not in _systems:
                    _systems[self._system_key] = load_function(system)()
            system = _systems[self._system_key]
        return replace(self._context, system=system or {}, **facts)

    def call(self, frame: DataFrame, **facts: Any) -> Any:
        """Return the result of the function for a DataFrame.

        Raises `GraphError` if Spark refuses an expression of the function.
        """
        try:
            return self.load()(self.context(**facts), frame)
        except PySparkException as error:
            raise GraphError(f"{self}: {failure_of(error).text}") from error


def _system_key(function: Callable[[], Any]) -> str:
    """Return the key of a function that is the `system` of a graph.

    A worker gets a new copy of the function with each task, but always with this key.
    """
    for key, known in _system_functions.items():
        if known is function:
            return key
    key = uuid.uuid4().hex
    _system_functions[key] = function
    return key


class SideQueues:
    """The queues that a function reads and writes by itself, opened when it is first called."""

    def __init__(self, name: str, processor: Processor, stores: NamedStores) -> None:
        self._name, self._stores = name, stores
        self._places = {"tailers": processor.tailers, "appenders": processor.appenders}
        self._open: dict[str, dict[str, Queue]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def queues(self) -> dict[str, dict[str, Queue]]:
        """Return the queues by `tailers` and `appenders`, and by binding."""
        if not self._open:
            self._open = {
                kind: {binding: self._queue(place) for binding, place in places.items()}
                for kind, places in self._places.items()
            }
        return self._open

    def _queue(self, place: Place) -> Queue:
        return Queue(self._stores[place.ns], place.queue, consumer=self._name)

    def close(self) -> None:
        """Close the queues, which releases their reservations."""
        for queues in self._open.values():
            for one in queues.values():
                one.close()
        self._open = {}
        self._stores.close()


class RowCalls:
    """Calls a function for each row of messages, in Spark's workers or on the driver.

    If a call fails, a message about the error goes to the error queue. Without an error queue, the
    error is raised. An invalid result is a `TypeError` or a `ValueError`.
    """

    def __init__(
        self, function: ProcessorFunction, processor: Processor, side_queues: SideQueues | None = None
    ) -> None:
        self._function, self._side_queues = function, side_queues
        self._inputs = {name: str(one) for name, one in processor.inputs.items()}
        self._out, self._errors = processor.out, processor.errors

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages made from rows of messages, in the columns of `MESSAGE_ARROW_SCHEMA`.

        Raises the errors of calls, also `TypeError` and `ValueError`, if there is no error queue.
        """
        function, context = self._function.load(), self._context()
        if self._side_queues is None:  # in a worker
            freeze_gc()
        for batch in batches:
            made: list[dict[str, Any]] = []
            columns = {name: _to_messages(batch.column(name)) for name in self._inputs}
            hashes = batch.column("delivery_hash").to_pylist()
            provenance = [None] * len(hashes)
            if PROVENANCE_COLUMN in batch.schema.names:
                provenance = batch.column(PROVENANCE_COLUMN).to_pylist()
            for row, delivery in enumerate(hashes):
                messages = {name: one for name, column in columns.items() if (one := column[row]) is not None}
                made += self._call_row(function, replace(context, delivery_hash=delivery), messages, provenance[row])
            yield pa.RecordBatch.from_pylist(made, schema=MESSAGE_ARROW_SCHEMA)

    def call_without_input(self) -> pa.RecordBatch:
        """Return the messages that the function makes without any input.

        Raises the error of the call, also `TypeError` and `ValueError`, if there is no error queue.
        """
        made = self._call_row(self._function.load(), self._context(), {}, None)
        return pa.RecordBatch.from_pylist(made, schema=MESSAGE_ARROW_SCHEMA)

    def _context(self) -> ProcessorContext:
        return self._function.context(**(self._side_queues.queues() if self._side_queues is not None else {}))

    def _call_row(
        self,
        function: Callable[..., Any],
        context: ProcessorContext,
        messages: Mapping[str, Message],
        provenance: str | None,
    ) -> list[dict[str, Any]]:
        """Return the messages made from a row: those for the outputs, or one for the error queue.

        Raises the error of the call, also `TypeError` and `ValueError`, if there is no error queue.
        """
        involved: Mapping[str, Any] = {self._inputs[name]: one for name, one in messages.items()}
        try:
            outputs = self._to_outputs(function(context, messages))
            made = []
            for name, one in outputs.items():
                involved = {str(self._out[name]): one}
                made.append(_to_row(self._out[name], one, provenance))
        except Exception as error:
            if self._errors is None:
                raise
            log.warning("processor %s: failed row goes to %s: %s", context.id, self._errors, error, exc_info=True)
            payload = error_message(context, error, involved)
            return [_to_row(self._errors, Output(payload), provenance)]
        return made

    def _to_outputs(self, result: object) -> dict[str, Output]:
        if not self._out or result is None:  # the result of a sink is ignored
            return {}
        if not isinstance(result, Mapping):
            raise TypeError(
                f"{self._function} returns {result!r}, which is neither None nor a dict of messages by output"
            )
        made: dict[str, Output] = {}
        for name, one in result.items():
            if name not in self._out:
                hint = did_you_mean(str(name), self._out) or f"; they are {', '.join(self._out)}"
                raise ValueError(f"{self._function} returns {name!r}, which is not one of the outputs{hint}")
            if one is not None:
                if isinstance(one, Message):
                    one = Output(one.payload, one.headers)
                made[name] = one if isinstance(one, Output) else Output(one)
        return made


def _to_row(place: Place, one: Output, provenance: str | None) -> dict[str, Any]:
    headers = dict(one.headers) if provenance is None else {**one.headers, PROVENANCE_HEADER: provenance}
    check_fields(ids=one.id, headers=headers, mature=one.mature, tries=one.tries, delay=one.delay)
    return {
        "ns": place.ns,
        "queue": place.queue,
        "payload": as_json(*encode(one.payload)).decode(),
        "headers": list(headers.items()),
        "mature": one.mature,
        "delay": one.delay,
        "tries": one.tries,
        "id": one.id,
    }


def _to_messages(column: pa.StructArray) -> list[Message | None]:
    """Return the messages of an input, with their payloads decoded; `None` if a row has none."""
    if not len(column):
        return []
    batch = pa.RecordBatch.from_arrays(column.flatten(), names=[one.name for one in column.type])
    payloads, kinds = from_json(batch.column("payload").cast(pa.binary()))
    facts = (batch.column(name).to_pylist() for name in ("id", "queue", "mature", "tries", "pushed"))
    rows = zip(*facts, payloads.to_pylist(), kinds.to_pylist(), header_dicts(batch), strict=True)
    return [
        Message(id, queue, decode(bytes(payload), kind), headers, mature, tries, pushed) if id is not None else None
        for id, queue, mature, tries, pushed, payload, kind, headers in rows
    ]
