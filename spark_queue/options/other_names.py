"""Names that options of other sources of Spark have, with those of ours that match.

Also the properties of a table, which Spark passes as options to `CREATE TABLE … USING queue`. It
passes none of a table's options to a Python source that reads or writes it.
"""

from __future__ import annotations

_QUEUE, _PER_LOG = "set 'queue' to the name of one queue", "a log is one sequence of positions"

_TABLE = "a table keeps no options for a queue: use CREATE TEMPORARY VIEW … USING queue OPTIONS (…)"

#: How the names begin of the options that a table keeps.
_TABLE_OPTION = "option."

#: What to do instead, by the name in lower case.
_HINTS = {
    "path": "a queue has no path: set the options 'url' and 'queue'",
    "kafka.bootstrap.servers": "set 'url'",
    "subscribe": _QUEUE,
    "subscribepattern": _QUEUE,
    "assign": _QUEUE,
    "topic": "set 'queue'",
    "kafka.group.id": "set 'consumer'",
    "groupid": "set 'consumer'",
    "groupidprefix": "set 'consumer'",
    "startingoffsetsbytimestamp": f"{_PER_LOG}: set 'startingTimestamp'",
    "endingoffsetsbytimestamp": f"{_PER_LOG}: set 'endingTimestamp'",
    "maxoffsetspertrigger": "set 'maxRecordsPerTrigger'",
    "minoffsetspertrigger": "a batch begins with the first message: set an interval with trigger(processingTime=…)",
    "maxtriggerdelay": "a batch begins with the first message: set an interval with trigger(processingTime=…)",
    "includeheaders": "leave it out: 'headers' is a column of every read",
    **dict.fromkeys(("provider", "location", "owner", "comment", "collation", "external"), _TABLE),
}


def other_name_hint(name: str) -> str:
    """Return what to do instead of an option of another source; empty if none has this name."""
    hint = _TABLE if name.lower().startswith(_TABLE_OPTION) else _HINTS.get(name.lower())
    return f"; {hint}" if hint else ""
