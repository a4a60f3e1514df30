"""The columns of messages in Arrow: as a store returns them, as it takes them, and in the history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, get_args

import pyarrow as pa

PayloadKind = Literal["json", "text", "binary"]

#: What stores give: one row per message.
MESSAGES = pa.schema(
    [
        ("id", pa.string()),
        ("queue", pa.string()),
        ("payload", pa.binary()),
        ("payload_kind", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("mature", pa.timestamp("us", tz="UTC")),
        ("tries", pa.int32()),
    ]
)

#: What stores give of messages that have left a queue: `processed` is when, `consumer` who had it (the first part of
#: the tag; NULL where that is not known), `outcome` how it went.
TOLD = pa.schema([("processed", pa.timestamp("us", tz="UTC")), ("consumer", pa.string()), ("outcome", pa.string())])
HISTORY = pa.schema([*MESSAGES, *TOLD])

#: How a message leaves a queue: committed, moved to the dead-letter queue; and, by keuss' own programs, processed, or
#: removed unseen.
Outcome = Literal["commit", "dead", "pop", "remove"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

#: What stores take. `mature` (a moment) and `delay` (ms from the database's now) exclude each other; neither
#: means now.
PUSHES = pa.schema(
    [
        ("id", pa.string()),
        ("payload", pa.binary()),
        ("payload_kind", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("mature", pa.timestamp("us", tz="UTC")),
        ("delay", pa.int64()),
        ("tries", pa.int32()),
    ]
)

#: No messages. Made of nulls, for the first `pa.array` of a process imports pandas, if there is one, which takes as
#: long as Spark and we together; and what plans batches needs none.
NO_MESSAGES = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in MESSAGES], schema=MESSAGES)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 253_402_300_799_999  #: 9999-12-31T23:59:59.999Z in ms: the last moment a message may mature at.
EARLIEST = -62_135_596_800_000  #: 0001-01-01 in ms: the first moment that Python knows.

#: No id begins so: records that hold many messages do (`buckets.py`).
MARK = "\x7f"
