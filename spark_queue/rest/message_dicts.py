"""Messages in JSON, as `pop --json` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import pyarrow as pa

from spark_queue.messages.columns import header_dicts
from spark_queue.messages.payload import as_json, to_jsonable
from spark_queue.rest.receipts import receipt_of


def message_dicts(batches: Iterable[pa.RecordBatch], tag: str | None) -> Iterator[dict[str, Any]]:
    """Yield the messages of batches for JSON, with unparsed payloads.

    `tag` holds them if they are reserved; then each has a `receipt`.
    """
    names = ("id", "queue", "payload", "payload_kind", "mature", "tries", "pushed")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in names)
        for (id, queue, payload, kind, mature, tries, pushed), headers in zip(
            zip(*columns, strict=True), header_dicts(batch), strict=True
        ):
            receipt = {} if tag is None else {"receipt": receipt_of(tag, id)}
            yield {
                "id": id, **receipt, "queue": queue, "payload": orjson.Fragment(as_json(payload, kind)),
                "headers": headers, "mature": to_jsonable(mature), "tries": tries,
                "pushed": None if pushed is None else to_jsonable(pushed),
            }  # fmt: skip
