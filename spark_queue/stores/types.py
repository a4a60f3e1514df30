"""Values that stores take and return, and the rules for tags, outcomes and keys of notes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import OptionError, StoreError
from spark_queue.messages.buckets import Record, are_buckets
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.dead_letter import (
    DEAD_AT_HEADER,
    ERROR_HEADER,
    FROM_HEADER,
    MAX_REASON_BYTES,
    TRIES_HEADER,
    cut_text,
)
from spark_queue.messages.json_text import clean_text, is_text
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.stores.note_shapes import fault_of

View = Literal["messages", "history"]
CheckState = Literal["good", "worry", "bad"]

#: Features that a layout may not support. Without `order`, messages of a queue or a tag come in the
#: order in which they became ready. `mature` may then be a few ms later. Without `ids`, a push or a
#: move does not notice that a ready message has the id already, so only a publish may be repeated.
#: Without `payloads`, they must be objects of strings; numbers become strings. Without `buckets`,
#: there are none. Without `holds`, other programs of the layout release reserved messages before
#: their lease ends. Without `pushed`, it is not known when a message was pushed.
LayoutFeature = Literal["order", "ids", "payloads", "buckets", "holds", "pushed"]

#: How many messages of a state are counted where a count must be quick: see `Store.sizes`.
COUNT_LIMIT = 10_000

#: Columns that differ between the messages of a bucket.
PER_MESSAGE_COLUMNS = ("id", "mature")

_COMPARE: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip

_OUTCOME = re.compile(r"""[^\s"'\\\x00-\x1f\x7f]{1,200}""")
_TAG = re.compile(r"[A-Za-z0-9_.:@-]+(/[A-Za-z0-9_.:@-]+)*")

#: The last part of a tag whose messages were reserved ahead: no consumer has worked on them yet.
UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of messages of a queue by state.

    `oldest_ready_age` (ms) is how long the first ready message has been ready; `None` if none is.
    `next_mature` (ms) is as in `Store.next_mature`. Both change with time, so comparisons of sizes
    ignore them. `capped`: the states that may have more messages than their number says, because
    they were counted up to a limit.
    """

    ready: int
    scheduled: int
    reserved: int
    oldest_ready_age: int | None = field(default=None, compare=False)
    capped: frozenset[str] = field(default=frozenset(), repr=False)
    next_mature: int | None = field(default=None, compare=False, repr=False)

    @property
    def total(self) -> int:
        return self.ready + self.scheduled + self.reserved


ZERO_SIZES = Sizes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Reservation:
    """The messages that one tag holds.

    `rows`: their number. `until`: when the lease ends (ms since 1970), `None` for never.
    """

    tag: str
    rows: int
    until: int | None


class Claim(NamedTuple):
    """What the tags of a claim hold: the number of messages of each.

    A repeated claim returns the same, since it is never an increment. `already_held`: whether they
    held messages before. `oversized_bucket`: the id of the next bucket, if the claim reserved
    nothing because it is too large. `bytes`: those that were counted, if the claim has a limit of
    bytes. `full`: whether that limit ended it.
    """

    rows: list[int]
    oversized_bucket: str | None = None
    already_held: bool = False
    bytes: int = 0
    full: bool = False


class Reserved(NamedTuple):
    """The result of a reserve with a limit of bytes: the number of messages of each tag.

    `bytes`: those of the messages; 0 if they were reserved before, or have no limit of bytes.
    `full`: whether that limit ended the reserve.
    """

    rows: list[int]
    bytes: int = 0
    full: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Messages end as committed: see `Store.commit`. `history`: ms."""

    history: int = 0
    outcome: str = "commit"


@dataclass(frozen=True, slots=True)
class Rollback:
    """Messages go back into the queue: see `Store.rollback`. `delay`: ms."""

    delay: int | None = 0
    failed: bool = True


@dataclass(frozen=True, slots=True)
class HandOut:
    """A message that a consumer works on next, and has reserved ahead.

    It goes from `unseen_tag(tag)` to `seen_tag(tag)`. If it gets a new lease there, that has
    `lease` ms: a store may leave it the one that it has.
    """

    tag: str
    record: Record
    lease: int | None


@dataclass(frozen=True, slots=True)
class Staged:
    """The number of rows that one stage holds for one queue."""

    stage: str
    queue: str
    rows: int


@dataclass(frozen=True, slots=True)
class Note:
    """A JSON object that is stored beside the queues, and its version: how often it was written.

    `written`: when it was written last (ms since 1970, the database's clock); `None` if an older
    version of this package wrote it.
    """

    value: dict[str, Any]
    version: int
    written: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RawNote:
    """A note as stored: `value` should be JSON text."""

    value: Any
    version: int
    written: int | None = None

    def parse(self, key: str) -> Note:
        """Return the note. Raises `StoreError` if it is damaged."""
        value, fault = self._parse_value(key)
        if fault:
            raise StoreError(
                f"the note {key!r} is damaged ({fault}): restore it from a backup, or remove it with spark-queue "
                f"doctor URL --remove-note {shlex.quote(key)}",
                key=key,
            )
        return Note(value, self.version, self.written)

    def fault(self, key: str) -> str:
        """Return why the note cannot be read; empty if it can."""
        return self._parse_value(key)[1]

    def _parse_value(self, key: str) -> tuple[Any, str]:
        """Return the value, and why it is damaged; empty if it is not."""
        try:
            value = orjson.loads(self.value)
        except ValueError as error:
            return None, f"it is not JSON: {error}"
        return value, fault_of(key, value)


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter of `peek`. Moments are ms; for `in`, `value` is a tuple.

    Only the history has the columns `processed`, `consumer` and `outcome`.
    """

    column: Literal["id", "mature", "tries", "processed", "consumer", "outcome"]
    op: Literal["=", "<", "<=", ">", ">=", "in"]
    value: str | int | tuple[str | int, ...]

    def possible(self) -> Condition:
        """Return the same for values that a message can have: see `possible_ids`."""
        if self.column != "id" or is_text("".join(map(str, self.values))):
            return self
        if self.op in ("=", "in"):
            return Condition(self.column, "in", tuple(possible_ids(list(map(str, self.values))) or ()))
        return Condition(self.column, self.op, clean_text(str(self.value)))

    @property
    def values(self) -> tuple[str | int, ...]:
        """The value, or all of those for `in`."""
        return self.value if isinstance(self.value, tuple) else (self.value,)


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """Why messages move to a dead-letter queue.

    `failed` is added to the tries in the header. The history of the queue that they leave keeps
    them for `history` ms.
    """

    reason: str | None = None
    failed: int = 0
    history: int = 0

    def headers(self, queue: str, tries: int, now: int) -> dict[str, str]:
        """Return the headers of a message that leaves `queue` at `now` (ms) after `tries` tries.

        A long reason is cut.
        """
        moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        headers = {FROM_HEADER: queue, DEAD_AT_HEADER: moment, TRIES_HEADER: str(tries + self.failed)}
        return headers if self.reason is None else headers | {ERROR_HEADER: cut_text(self.reason, MAX_REASON_BYTES)}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages an operation applies to: those of `tag`, or with `None` those not reserved.

    The other fields narrow them.
    """

    tag: str | None = None
    ids: Sequence[str] | None = None
    limit: int | None = None
    min_tries: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of `doctor`: its name, its state, a message, and in `todo` the remedy, if any."""

    what: str
    state: CheckState
    told: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class ForeignData:
    """Data in the place of a queue: the name of that place, and what is there.

    `documents`: about how many. `indexes`: the key of each, by name. `is_queue`: whether it is a
    queue of this layout already.
    """

    place: str
    documents: int
    indexes: Mapping[str, str]
    is_queue: bool


def filter_rows(batch: pa.RecordBatch, where: Sequence[Condition], *, or_buckets: bool = False) -> pa.RecordBatch:
    """Return the rows that meet the conditions.

    With `or_buckets`, a bucket meets those on PER_MESSAGE_COLUMNS: these are for its messages.
    """
    for one in where:
        column = batch.column(one.column)
        values = milliseconds(column) if pa.types.is_timestamp(column.type) else column
        if one.op == "in":
            fits = pc.is_in(values, pa.array(one.value, values.type))
        else:
            fits = _COMPARE[one.op](values, pa.scalar(one.value, values.type))
        if or_buckets and one.column in PER_MESSAGE_COLUMNS:
            fits = pc.or_(fits, are_buckets(batch.column("id")))
        batch = batch.filter(fits)
    return batch


def possible_ids(ids: Sequence[str] | None) -> Sequence[str] | None:
    """Return those of these ids that a message can have: UTF-8 has no half of a surrogate pair."""
    return ids if ids is None or is_text("".join(ids)) else [one for one in ids if is_text(one)]


def check_tag(tag: str) -> None:
    """Raise `OptionError` if a tag is not names joined by slashes."""
    if not _TAG.fullmatch(tag):
        raise OptionError(f"{tag!r} cannot be a tag: letters, digits and _ . : @ - in parts joined by /", tag=tag)


def check_duration(name: str, ms: int | None) -> None:
    """Raise `OptionError` if a duration is negative, or does not end before the year 5000."""
    if ms is not None and not 0 <= ms <= MAX_DURATION_MS:
        why = f"negative: {ms} ms" if ms < 0 else "too long: it must end before the year 5000"
        raise OptionError(f"{name} is {why}", option=name)


def check_outcome(outcome: str) -> None:
    """Raise `OptionError` if not every history can store this outcome."""
    if not _OUTCOME.fullmatch(outcome):
        raise OptionError(
            f"{outcome!r} cannot be an outcome: 1 to 200 characters without blanks, quotes and backslashes",
            outcome=outcome,
        )


def queue_note_key(queue: str, *names: str) -> str:
    """Return the key of a note about a queue; without names, the prefix of all these keys."""
    return "/".join(("queue", quote(queue, safe=""), *names, *([] if names else [""])))


def consumer_of(tag: str | None) -> str | None:
    """Return the consumer of a tag: its first part."""
    return tag.partition("/")[0] if tag else None


def unseen_tag(tag: str) -> str:
    """Return the tag below `tag` for messages that are reserved ahead."""
    return f"{tag}/{UNSEEN}"


def seen_tag(tag: str) -> str:
    """Return the tag below `tag` for messages that were handed out: that of the first partition."""
    return f"{tag}/0"


def is_unseen(tag: str) -> bool:
    """Return whether the messages of a tag are reserved ahead: the end of its lease is no try."""
    return tag.endswith(f"/{UNSEEN}")


def tag_range(tag: str) -> tuple[str, str]:
    """Return the half-open range of the tags below `tag` in text order ("0" follows "/")."""
    return f"{tag}/", f"{tag}0"
