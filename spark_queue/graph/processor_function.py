"""What the function of a processor gets and gives: see `spark_queue.graph.processor.Processor`.

    def add(process, messages):                                # rows: true
        total = sum(one.payload["n"] for one in messages.values())
        return {"sum": {"n": total}} if total else None

    def add(process, df):                                      # on DataFrames
        n = [F.try_variant_get(F.try_parse_json(f"{one}.payload"), "$.n", "int") for one in ("left", "right")]
        return {"sum": F.struct((n[0] + n[1]).alias("n"))}

A function on rows gives, for each output that is to get a message, its payload, an `Output` that tells more of it, or
a `Message` that goes on with its payload and headers. What it raises is described in the error queue, with all that
`wrap_error` has told around it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from spark_queue.errors import MessageError
from spark_queue.messages.json_text import load_json
from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json, as_json, encode

#: What an error is called whose `wrap_error` tells no `type`, and one around which there is none.
WRAPPED, UNWRAPPED = "error", "processor"

#: Where an exception keeps what `wrap_error` has told.
_CONTEXT = "spark_queue_context"

#: Most frames of a trace in an error queue: the innermost ones.
FRAMES = 50


@dataclass(frozen=True)
class Process:
    """What the function of a processor knows beside its messages.

    `id`: the name of the processor. `config`: its declaration, `in`, `out`, `errors`, … with queues as `ns/queue`.
    `opts`: its own options. `system`: what all functions of the graph share. `delivery`: the guarantee.
    `delivery_hash`: of these messages (of the batch, in a sink on DataFrames), 64 hex digits, the same whenever they
    come again; on DataFrames it is a column. `tailers`, `appenders`: the `Queue`s of a processor that reads or
    writes by itself.
    """

    id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    opts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # it may hold secrets, as `system` may
    system: Mapping[str, Any] = field(default_factory=dict, repr=False)
    delivery: str = "exactly-once"
    errors: str | None = None
    delivery_hash: str | None = None
    tailers: Mapping[str, Any] = field(default_factory=dict)
    appenders: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """A message for an output.

    `payload`: `bytes` stay bytes, `str` text, all else becomes JSON. It can be reserved from the moment `mature`, or
    `delay` seconds later, else at once. `id`: made where it is `None`; one that the queue holds already is left as it
    is.
    """

    payload: Json | bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    mature: datetime | None = None
    delay: float | None = None
    tries: int = 0
    id: str | None = None


@contextmanager
def wrap_error(context: Mapping[str, Any] | None = None, **more: Any) -> Iterator[None]:
    """Tell an exception that goes through here what was going on: it is in what the error queue gets.

    Of several around each other, all tell; what an inner one says counts. The exception stays the one it is. `type`
    names the kind of error.
    """
    try:
        yield
    except Exception as error:
        setattr(error, _CONTEXT, {**(context or {}), **more, **context_of(error)})
        raise


def context_of(error: BaseException) -> dict[str, Any]:
    """What `wrap_error` has told an exception."""
    return dict(getattr(error, _CONTEXT, {}))


def error_message(process: Process, error: BaseException, messages: Mapping[str, Any]) -> dict[str, Any]:
    """What the error queue gets: `type`, `config`, `messages` by queue, `cause`, and what `wrap_error` has told.

    `messages` are the inputs, or the outputs where these could not be written. What JSON cannot hold is told as
    Python prints it.
    """
    context = {key: told(value) for key, value in context_of(error).items()}
    kind = context.pop("type", WRAPPED if hasattr(error, _CONTEXT) else UNWRAPPED)
    return {
        **context,
        "type": kind,
        "processor": process.id,
        "config": told(process.config),
        "messages": {queue: told(one) for queue, one in messages.items()},
        "cause": {
            "cause": told(str(error)),
            "via": [{"type": type(one).__name__, "message": told(str(one))} for one in _chain(error)],
            "trace": [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)[-FRAMES:]
            ],
        },
    }


def told(value: Any) -> Json:
    """A value as JSON can hold it: what it cannot, as Python prints it."""
    if isinstance(value, Message | Output):
        return {"id": told(value.id), "payload": told(value.payload), "headers": told(value.headers)}
    try:
        plain: Json = load_json(as_json(*encode(value)))
    except (MessageError, ValueError):
        pass
    else:
        return plain
    if isinstance(value, Mapping):
        return {str(key): told(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [told(one) for one in value]
    return repr(value)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it was raised from, the outermost first."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def sound(output: Output) -> bytes:
    """The payload as JSON text, as `as_json` makes it. Raises `MessageError` for what JSON cannot hold."""
    return as_json(*encode(output.payload))
