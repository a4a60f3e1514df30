"""Values of options: roles of a DataFrame, delivery guarantees, layouts."""

from __future__ import annotations

from typing import Literal

#: The role of a DataFrame with `format("queue")`.
Role = Literal["stream", "snapshot", "push", "settle"]

READ_ROLES: tuple[Role, ...] = ("stream", "snapshot")
ALL_ROLES: tuple[Role, ...] = ("stream", "snapshot", "push", "settle")

#: Options that Spark itself adds to those of the user.
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "numrows", "truncate"})

WARN, FAIL, IGNORE = "warn", "fail", "ignore"
NEVER, AUTO = "never", "auto"
FROM_EARLIEST, FROM_LATEST = "earliest", "latest"
ERROR = "error"
SINGLE, BUCKET = "single", "bucket"
AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE = "at-least-once", "at-most-once", "exactly-once"
MAX_COUNT = 2**31 - 1

#: The consumer of all messages that are reserved over HTTP.
REST = "rest"


ROLE_NAMES: dict[Role, str] = {
    "stream": "a streaming read",
    "snapshot": "a batch read",
    "push": "a write that pushes",
    "settle": "a write that settles",
}
