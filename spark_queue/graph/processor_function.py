"""Arguments and results of a processor's function: see `spark_queue.graph.processor.Processor`.

    def add(process, messages):                                # rows: true
        total = sum(one.payload["n"] for one in messages.values())
        return {"sum": {"n": total}} if total else None

    def add(process, df):                                      # on DataFrames
        json = [F.try_parse_json(f"{one}.payload") for one in ("left", "right")]
        n = [F.try_variant_get(one, "$.n", "int") for one in json]
        return {"sum": F.struct((n[0] + n[1]).alias("n"))}

A function on rows returns a mapping from outputs to messages. A message is a payload, an `Output`
with more fields, or a `Message`, whose payload and headers are passed on. If the function raises an
error, the error queue gets a message about it, with the context of `wrap_error`.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from spark_queue.errors import MessageError
from spark_queue.messages.json_text import load_json
from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json, as_json, encode

#: The `type` of an error with a `wrap_error` that sets none, and of one without `wrap_error`.
WRAPPED_TYPE, UNWRAPPED_TYPE = "error", "processor"

#: The attribute of an exception that has the context of `wrap_error`.
_CONTEXT_ATTRIBUTE = "spark_queue_context"

#: The maximum number of frames in a trace: the innermost ones are kept.
MAX_FRAMES = 50


@dataclass(frozen=True)
class ProcessorContext:
    """The context of a call of a processor's function.

    `id`: the name of the processor. `config`: its declaration (`in`, `out`, `errors`, …), with
    queues as `ns/queue`. `opts`: its own options. `system`: the mapping that all functions of the
    graph share. `delivery`: the delivery guarantee. `errors`: the error queue. `tailers`,
    `appenders`: the `Queue`s of a processor that reads or writes queues by itself.

    `delivery_hash`: 64 hex digits that identify the messages of the call, the same at each
    redelivery. In a sink on DataFrames it identifies the batch. Other functions on DataFrames find
    it in a column.
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

    `payload`: `bytes` and `str` are kept, any other value becomes JSON. The message can be reserved
    from the moment `mature`, or `delay` seconds later, else at once. `id`: generated if it is
    `None`. If the queue already holds a message with this id, that message does not change.
    """

    payload: Json | bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    mature: datetime | None = None
    delay: float | None = None
    tries: int = 0
    id: str | None = None


@contextmanager
def wrap_error(context: Mapping[str, Any] | None = None, **more: Any) -> Iterator[None]:
    """Add context to an exception that is raised inside; the message in the error queue has it.

    The exception is raised again, unchanged. If several are nested, their context is merged, and
    the value of the inner one wins. The key `type` is the kind of the error.
    """
    try:
        yield
    except Exception as error:
        setattr(error, _CONTEXT_ATTRIBUTE, {**(context or {}), **more, **context_of(error)})
        raise


def context_of(error: BaseException) -> dict[str, Any]:
    """Return the context that `wrap_error` has added to an exception."""
    return dict(getattr(error, _CONTEXT_ATTRIBUTE, {}))


def error_message(
    call_context: ProcessorContext, error: BaseException, messages: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the message for the error queue, as a JSON object.

    It has `type`, `processor`, `config`, `messages` by queue, `cause`, and the context of
    `wrap_error`. `messages` are the inputs, or the output that could not be written. A value that
    JSON cannot represent becomes its `repr`.
    """
    context = {key: to_jsonable(value) for key, value in context_of(error).items()}
    kind = context.pop("type", WRAPPED_TYPE if hasattr(error, _CONTEXT_ATTRIBUTE) else UNWRAPPED_TYPE)
    return {
        **context,
        "type": kind,
        "processor": call_context.id,
        "config": to_jsonable(call_context.config),
        "messages": {queue: to_jsonable(one) for queue, one in messages.items()},
        "cause": {
            "cause": to_jsonable(str(error)),
            "via": [
                {"type": type(one).__name__, "message": to_jsonable(str(one))} for one in _exception_chain(error)
            ],
            "trace": [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
            ],
        },
    }


def to_jsonable(value: Any) -> Json:
    """Return a value in the types of JSON; the `repr` of a value that JSON cannot represent."""
    if isinstance(value, Message | Output):
        return {name: to_jsonable(getattr(value, name)) for name in ("id", "payload", "headers")}
    with suppress(MessageError, ValueError):
        plain: Json = load_json(as_json(*encode(value)))
        return plain
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(one) for one in value]
    return repr(value)


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, the outermost first."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
