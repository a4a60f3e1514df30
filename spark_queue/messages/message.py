"""One message as a program has it, and batches of messages from and to such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from spark_queue.errors import MessageError
from spark_queue.messages.columns import headers_array
from spark_queue.messages.ids import new_ids
from spark_queue.messages.payload import Json, decode, encode
from spark_queue.messages.schema import EPOCH, PUSHES
from spark_queue.messages.values import unfit


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a program sees it.

    `payload` is `bytes` for a binary message, `str` for a text, and what `json.loads` gives for anything else.
    `mature` is the moment (UTC) from which it may be reserved; `tries` counts its failed attempts so far.
    """

    id: str
    queue: str
    payload: Json | bytes
    headers: dict[str, str] = field(default_factory=dict)
    mature: datetime = EPOCH
    tries: int = 0


def messages(batch: pa.RecordBatch) -> list[Message]:
    """The rows of a MESSAGES batch as `Message` objects, in order."""
    names = ("id", "queue", "payload", "payload_kind", "headers", "mature", "tries")
    columns = (batch.column(name).to_pylist() for name in names)
    return [
        Message(id, queue, decode(payload, kind), dict(headers or ()), mature, tries)
        for id, queue, payload, kind, headers, mature, tries in zip(*columns, strict=True)
    ]


def pushes(
    payloads: Sequence[Json | bytes],
    *,
    ids: Sequence[str] | None = None,
    headers: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
    mature: Sequence[datetime | None] | datetime | None = None,
    delay: Sequence[int | None] | int | None = None,
    tries: Sequence[int] | int = 0,
    queue: str = "",
) -> pa.RecordBatch:
    """A PUSHES batch of Python values.

    `headers`, `mature`, `delay` (ms) and `tries` are one for all, or a sequence with one for each. Ids are made where
    not given. Raises `MessageError` for values that cannot become messages; its `rows` tells which. `queue`: the name
    that it has in the error.
    """
    try:
        return _pushes(payloads, ids, headers, mature, delay, tries)
    except (MessageError, TypeError, ValueError, AttributeError, OverflowError) as error:
        columns = {"ids": ids, "headers": headers, "mature": mature, "tries": tries}
        raise unfit(queue, payloads, columns, error) from error


def _pushes(
    payloads: Sequence[Json | bytes],
    ids: Sequence[str] | None,
    headers: Sequence[Mapping[str, str]] | Mapping[str, str] | None,
    mature: Sequence[datetime | None] | datetime | None,
    delay: Sequence[int | None] | int | None,
    tries: Sequence[int] | int,
) -> pa.RecordBatch:
    n = len(payloads)

    def spread(value: Any, scalar: type | tuple[type, ...]) -> list[Any]:
        return [value] * n if value is None or isinstance(value, scalar) else list(value)

    encoded = [encode(payload) for payload in payloads]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(new_ids(n) if ids is None else list(ids), pa.string()),
            pa.array([payload for payload, _ in encoded], pa.binary()),
            pa.array([kind for _, kind in encoded], pa.string()),
            headers_array(spread(headers, Mapping)),
            pa.array(spread(mature, datetime), pa.timestamp("us", tz="UTC")),
            pa.array(spread(delay, int), pa.int64()),
            pa.array(spread(tries, int), pa.int32()),
        ],
        schema=PUSHES,
    )
