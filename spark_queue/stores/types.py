"""What a store is told and tells: small facts, and the names by which things are known."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import OptionError, StoreError
from spark_queue.messages.buckets import are_buckets
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.json_text import cleaned
from spark_queue.stores.note_shapes import fault_of

View = Literal["messages", "history"]
Verdict = Literal["good", "worry", "bad"]

#: What a layout may lack. `order`: messages come in the order in which they became ready, and so do those of a tag,
#: where `mature` may be a few ms more for that. `ids`: a push or a move does not see that a ready message has the id
#: already, so only a publish may be repeated. `payloads`: they are objects of strings, which numbers become too.
#: `buckets`: there are none. `holds`: programs of the layout's own give back what is held, though its lease lasts.
Lacking = Literal["order", "ids", "payloads", "buckets", "holds"]

#: The headers in which a dead letter tells of its death: see `Death`.
ERROR_HEADER, FROM_HEADER, DIED_HEADER, TRIES_HEADER = "x-error", "x-dl-from-queue", "x-dl-t", "x-dl-tries"

#: Columns in which the messages of a bucket differ.
OF_EACH = ("id", "mature")

_COMPARE: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip

_OUTCOME = re.compile(r"""[^\s"'\\\x00-\x1f\x7f]{1,200}""")
_TAG = re.compile(r"[A-Za-z0-9_.:@-]+(/[A-Za-z0-9_.:@-]+)*")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many messages a queue holds, by state.

    `oldest_ready_age` (ms) is how long the first has been ready, `None` where nothing is; it moves with the clock,
    so it does not count when sizes are compared.
    """

    ready: int
    scheduled: int
    reserved: int
    oldest_ready_age: int | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        return self.ready + self.scheduled + self.reserved


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one tag holds.

    `until` is when its lease ends (ms since 1970), `None` for never.
    """

    tag: str
    rows: int
    until: int | None


class Claim(NamedTuple):
    """What a claim came to: the messages that its tag holds, and whether it had held them before.

    `large`: the id of a bucket that comes next and is too large, if that is what ended it.
    """

    rows: int
    large: str | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """What one stage holds for one queue."""

    stage: str
    queue: str
    rows: int


@dataclass(frozen=True, slots=True)
class Note:
    """A small record kept beside the queues: a JSON object, and how often it was written.

    `written`: ms since 1970 of the last time, by the database's clock; `None` if an older version wrote it.
    """

    value: dict[str, Any]
    version: int
    written: int | None = field(default=None, compare=False)


def damaged_note(key: str, reason: object) -> StoreError:
    """The error for a note that cannot be read."""
    return StoreError(
        f"the note {key!r} is damaged ({reason}): restore it from a backup, or remove it with spark-queue doctor URL "
        f"--remove-note {shlex.quote(key)}",
        key=key,
    )


@dataclass(frozen=True, slots=True)
class RawNote:
    """A note as its database has it: what should be JSON text."""

    value: Any
    version: int
    written: int | None = None

    def read(self, key: str) -> Note:
        """The note. Raises `StoreError` if it is damaged."""
        try:
            return Note(self._sound(key), self.version, self.written)
        except ValueError as error:
            raise damaged_note(key, str(error)) from error

    def fault(self, key: str) -> str:
        """Why it cannot be read; an empty text if it can."""
        try:
            self._sound(key)
        except ValueError as error:
            return str(error)
        return ""

    def _sound(self, key: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = orjson.loads(self.value)
        except ValueError as error:
            raise ValueError(f"it is not JSON: {error}") from error
        if fault := fault_of(key, value):
            raise ValueError(fault)
        return value


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter of `peek`: moments are ms; `value` of `in` is a tuple. Only the history has the last three columns."""

    column: Literal["id", "mature", "tries", "processed", "consumer", "outcome"]
    op: Literal["=", "<", "<=", ">", ">=", "in"]
    value: str | int | tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Death:
    """Why messages move to a dead-letter queue.

    `failed` failures are added to the tries that the header tells. `history` ms long the history of the queue that
    they leave tells of them, too.
    """

    reason: str | None = None
    failed: int = 0
    history: int = 0

    def headers(self, queue: str, tries: int, now: int) -> dict[str, str]:
        """What the headers of a message of `queue` get that dies at `now` (ms) after `tries` failures."""
        moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = {FROM_HEADER: queue, DIED_HEADER: moment, TRIES_HEADER: str(tries + self.failed)}
        return told if self.reason is None else told | {ERROR_HEADER: cleaned(self.reason)}


@dataclass(frozen=True, slots=True)
class Which:
    """The messages that an operation is for: those that `tag` holds, or that nobody holds; narrowed by the rest."""

    tag: str | None = None
    ids: Sequence[str] | None = None
    limit: int | None = None
    min_tries: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and how it is; `todo` says what to do about it, if anything."""

    what: str
    state: Verdict
    told: str
    todo: str = ""


def meeting(batch: pa.RecordBatch, where: Sequence[Condition], *, or_buckets: bool = False) -> pa.RecordBatch:
    """The rows that meet the conditions.

    `or_buckets`: what is a bucket meets those on columns OF_EACH, which are for its messages.
    """
    for one in where:
        column = batch.column(one.column)
        values = milliseconds(column) if pa.types.is_timestamp(column.type) else column
        if one.op == "in":
            fits = pc.is_in(values, pa.array(one.value, values.type))
        else:
            fits = _COMPARE[one.op](values, pa.scalar(one.value, values.type))
        if or_buckets and one.column in OF_EACH:
            fits = pc.or_(fits, are_buckets(batch.column("id")))
        batch = batch.filter(fits)
    return batch


def check_tag(tag: str) -> None:
    """Raise `OptionError` where a tag is not names joined by slashes."""
    if not _TAG.fullmatch(tag):
        raise OptionError(f"{tag!r} cannot be a tag: letters, digits and _ . : @ - in parts joined by /", tag=tag)


def check_outcome(outcome: str) -> None:
    """Raise `OptionError` where an outcome is no word that every history can keep."""
    if not _OUTCOME.fullmatch(outcome):
        raise OptionError(
            f"{outcome!r} cannot be an outcome: 1 to 200 characters without blanks, quotes and backslashes",
            outcome=outcome,
        )


def about(queue: str, *names: str) -> str:
    """The key of a note about a queue; the beginning of all their keys where no names are given."""
    return "/".join(("queue", quote(queue, safe=""), *names, *([] if names else [""])))


def holder(tag: str | None) -> str | None:
    """The consumer who holds what a tag holds."""
    return tag.partition("/")[0] if tag else None


def below(tag: str) -> tuple[str, str]:
    """The half-open range of the tags below `tag` in text order ("0" comes right after "/")."""
    return f"{tag}/", f"{tag}0"
