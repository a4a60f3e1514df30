"""Read what Spark reports about a batch: the offsets of its sources, and their numbers of rows."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def parse_offset(text: Any) -> Any:
    """Return the offset in a query's progress, or an empty dict if it is not a JSON object.

    It is JSON; on Spark 4.0 and 4.1 it is the text of a Python dict.
    """
    if isinstance(text, dict):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            offset = parse(str(text))
        except (ValueError, SyntaxError):
            continue
        return offset if isinstance(offset, dict) else {}
    return {}


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """A batch of one of our sources: its messages, and the rows that Spark has read of it."""

    end: Mapping[str, Any]
    queues: str
    messages: int
    read: int


def source_batches(progress: Mapping[str, Any]) -> list[SourceBatch]:
    """Return the batches of our sources in the progress of a query."""
    found = []
    for source in progress["sources"]:
        start, end = parse_offset(source["startOffset"]), parse_offset(source["endOffset"])
        if end == start:
            continue
        if "consumer" in end and end.get("seq"):
            rows = end.get("rows") or []
            inputs = rows.values() if isinstance(rows, dict) else [rows]
            messages = max(map(sum, inputs), default=0)
            queues = [one["queue"] for one in end["inputs"].values()] if "inputs" in end else [end["queue"]]
        elif "reader" in end and "position" in end:
            begin = end.get("begin") or start
            messages, queues = end["position"] - begin.get("position", end["position"]), [end["queue"]]
        else:
            continue
        found.append(SourceBatch(end, " and ".join(map(repr, queues)), messages, source["numInputRows"]))
    return found
