"""The Arrow columns of messages: as a store returns them, as it takes them, and in its history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, get_args

import pyarrow as pa

PayloadKind = Literal["json", "text", "binary"]

#: The columns that stores return: one row per message. `pushed`: when the message was pushed, NULL
#: if that is unknown.
MESSAGES = pa.schema(
    [
        ("id", pa.string()),
        ("queue", pa.string()),
        ("payload", pa.binary()),
        ("payload_kind", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("mature", pa.timestamp("us", tz="UTC")),
        ("tries", pa.int32()),
        ("pushed", pa.timestamp("us", tz="UTC")),
    ]
)

#: The additional columns that stores return for messages that have left a queue. `processed`: when.
#: `consumer`: the first part of the tag that held it (NULL if unknown). `outcome`: how it left.
HISTORY_FIELDS = pa.schema(
    [("processed", pa.timestamp("us", tz="UTC")), ("consumer", pa.string()), ("outcome", pa.string())]
)
HISTORY = pa.schema([*MESSAGES, *HISTORY_FIELDS])

#: How a message leaves a queue: it is committed, or moved to the dead-letter queue. Programs of
#: keuss also process it in one step (`pop`), or remove it unprocessed (`remove`).
Outcome = Literal["commit", "dead", "pop", "remove"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

#: The columns that stores take. `mature` (a moment) and `delay` (ms after the database's now)
#: exclude each other. Without both, a message is due at once.
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

#: The columns of messages that were pushed before, and are written again. Rows without `pushed`,
#: which have the columns PUSHES, are pushed now.
WRITTEN = pa.schema([*PUSHES, MESSAGES.field("pushed")])

#: An empty batch. It is made of nulls, because the first `pa.array` of a process imports pandas if
#: it is installed. This takes as long as the imports of Spark and this package together, and the
#: processes that plan batches do not need it.
NO_MESSAGES = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in MESSAGES], schema=MESSAGES)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The ids of buckets begin with it (`buckets.py`), and no id of a message does.
BUCKET_PREFIX = "\x7f"
