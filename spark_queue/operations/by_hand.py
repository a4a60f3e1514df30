"""Messages by hand: what a program without Spark does through `Queue`, done by single calls, as a shell makes them.

What is taken by one call is settled by another, so a reservation is known by its tag alone. The rules are those of
`spark_queue.operations`; what a living query holds is refused here, too.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from spark_queue.call_mistakes import check_texts
from spark_queue.errors import MessageError, OptionError, StoreError, UsageError, near
from spark_queue.json_text import dump_json, load_json
from spark_queue.message import (
    LATEST,
    PUSHES,
    Json,
    Message,
    faults,
    headers_array,
    messages,
    new_id_array,
    new_ids,
    of_json,
)
from spark_queue.operations.common import opened
from spark_queue.operations.held import check_free
from spark_queue.queue_names import dead_letter_queue
from spark_queue.store import open_store
from spark_queue.store.base import PAGE_ROWS, Store
from spark_queue.store.existence import check_exists, expect
from spark_queue.store.facts import Condition, check_tag
from spark_queue.store.policy import give_back
from spark_queue.words import plural

#: Messages that one step pushes, takes or moves.
STEP = 5_000

#: What a line tells that is pushed: a payload in JSON, a payload that is plain text, or a whole message.
Form = Literal["json", "text", "message"]

#: Makes so many ids.
MakeIds = Callable[[int], list[str]]

#: What a whole message may tell, and what else it has where it was taken from a queue or its history.
_FIELDS = ("id", "payload", "headers", "mature", "delay", "tries")
_READ = ("queue", "processed", "consumer", "outcome")


# --- messages in ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Common:
    """What holds for all messages of a push, unless a message tells it of itself.

    `mature` or `delay` (seconds from the database's now), not both. Raises `MessageError` for headers that are not
    text.
    """

    headers: dict[str, str] | None = None
    mature: datetime | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        check_texts(None, self.headers)


def push(
    url: str,
    queue: str,
    lines: Iterable[Sequence[bytes]],
    form: Form = "json",
    common: Common | None = None,
    *,
    front: bool = False,
    progress: Callable[[list[str]], None] | None = None,
) -> int:
    """Push messages, one a line, and give their number; blank lines are none.

    They come in batches, each of which becomes visible as it is pushed, and as a whole where the database is atomic.
    An id that the queue holds already is left as it is. `front`: before all others, which only the layout `rfq` can.
    `progress` is told the ids of each batch, once it is pushed. Raises `MessageError`, which tells the number of the
    first line that cannot be a message (from 1); what stands in earlier batches is pushed then, nothing of its own.
    """
    common = common or Common()
    if common.mature is not None and common.delay is not None:
        raise OptionError("give either mature or delay, not both", option="mature")
    if common.delay is not None and not 0 <= common.delay <= LATEST / 2000:
        raise OptionError(f"delay must be 0 or more seconds and end before the year 5000, not {common.delay}")
    with open_store(url) as store:
        store.check_queue(queue)
        if front:
            if not hasattr(store, "front"):
                raise UsageError("only the layout rfq can push to the front: leave --front out, or use --layout rfq")
            store.front = True
        pushed = number = 0
        for batch in lines:
            numbered = [(number + place, line) for place, line in enumerate(batch, 1) if line.strip()]
            number += len(batch)
            for start in range(0, len(numbered), STEP):
                ids = _push(store, queue, numbered[start : start + STEP], form, common, pushed)
                pushed += len(ids)
                if progress is not None:
                    progress(ids)
        return pushed


def check(lines: Iterable[Sequence[bytes]], form: Form = "json", common: Common | None = None) -> None:
    """Raise `MessageError` as `push` would, for all that can be told without a store."""
    number = 0
    for some in lines:
        numbered = [(number + place, line) for place, line in enumerate(some, 1) if line.strip()]
        number += len(some)
        batch = _batch(numbered, form, common or Common(), 0)
        for row, rule in faults(batch, LATEST).items():
            raise _wrong(numbered[row][0], rule, 0)


def _push(
    store: Store, queue: str, lines: Sequence[tuple[int, bytes]], form: Form, common: Common, before: int
) -> list[str]:
    batch = _batch(lines, form, common, before, lambda n: _ids_like(store, n))
    try:
        store.push(queue, batch)
    except MessageError as error:
        row, rule = next(iter(error.rows.items()))
        raise _wrong(lines[row][0], rule, before) from error
    ids: list[str] = batch.column("id").to_pylist()
    return ids


def _ids_like(store: Store, n: int) -> list[str]:
    """New ids, in the form that the layout of the store has for its own."""
    made: list[str] = store.own_ids(new_id_array(n)).to_pylist()
    return made


def _wrong(number: int, rule: str, before: int) -> MessageError:
    pushed = f"{plural(before, 'message')} before it pushed already" if before else "nothing was pushed"
    return MessageError(f"line {number}: {rule}; {pushed}", line=number, pushed=before)


def _batch(
    lines: Sequence[tuple[int, bytes]], form: Form, common: Common, before: int, made: MakeIds = new_ids
) -> pa.RecordBatch:
    """The lines as a PUSHES batch."""
    if form == "message":
        return _whole(lines, common, before, made)
    texts = [line.strip() if form == "json" else line.rstrip(b"\r\n") for _, line in lines]
    if form == "json":
        payloads, kinds = of_json(pa.array(texts, pa.binary()))
    else:
        payloads, kinds = pa.array(texts, pa.binary()), pa.repeat("text", len(texts))
    n = len(texts)
    delay = None if common.delay is None else round(common.delay * 1000)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(made(n), pa.string()),
            payloads,
            kinds.cast(pa.string()),
            headers_array([common.headers or {}] * n),
            pa.array([common.mature] * n, PUSHES.field("mature").type),
            pa.array([delay] * n, pa.int64()),
            pa.array([0] * n, pa.int32()),
        ],
        schema=PUSHES,
    )


def _whole(lines: Sequence[tuple[int, bytes]], common: Common, before: int, made: MakeIds) -> pa.RecordBatch:
    values = []
    for number, line in lines:
        try:
            values.append(load_json(line))
        except ValueError as error:
            raise _wrong(number, f"it is not JSON ({error})", before) from None
    try:
        return whole_messages(values, common, made)
    except MessageError as error:
        row, rule = next(iter(error.rows.items()))
        raise _wrong(lines[row][0], rule, before) from None


def whole_messages(values: Sequence[Json], common: Common | None = None, made: MakeIds = new_ids) -> pa.RecordBatch:
    """Objects that tell a whole message each, as `pop --json` prints them, as a PUSHES batch.

    `made` gives ids to those that have none. Raises `MessageError`, whose `rows` tells which are none.
    """
    rows, wrong = [], {}
    for number, value in enumerate(values):
        try:
            rows.append(_told(value, common or Common()))
        except (MessageError, ValueError, OverflowError) as error:
            wrong[number] = str(error)
    if wrong:
        number, rule = next(iter(wrong.items()))
        raise MessageError(f"message {number}: {rule}; nothing was pushed", rows=wrong)
    columns = {name: [row[name] for row in rows] for name in _FIELDS}
    payloads, kinds = of_json(pa.array(columns["payload"], pa.binary()))
    ids = [new if id is None else id for id, new in zip(columns["id"], made(len(rows)), strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.string()),
            payloads,
            kinds.cast(pa.string()),
            headers_array(columns["headers"]),
            pa.array(columns["mature"], PUSHES.field("mature").type),
            pa.array(columns["delay"], pa.int64()),
            pa.array(columns["tries"], pa.int32()),
        ],
        schema=PUSHES,
    )


def _told(value: Json, common: Common) -> dict[str, Any]:
    """What a line says that is a whole message. Raises `ValueError` with the rule that it breaks."""
    if not isinstance(value, dict) or "payload" not in value:
        raise ValueError(
            'it is not a message: write {"payload": …}, and optionally ' + ", ".join(_FIELDS[:1] + _FIELDS[2:])
        )
    if odd := value.keys() - {*_FIELDS, *_READ}:
        raise ValueError(f"a message has no field {min(odd)!r}{near(min(odd), _FIELDS)}")
    id, headers, tries = value.get("id"), value.get("headers"), value.get("tries", 0)
    if id is not None and not isinstance(id, str):
        raise ValueError("its id must be text")
    if headers is not None and not (
        isinstance(headers, dict) and all(isinstance(one, str) for one in headers.values())
    ):
        raise ValueError("its headers must be an object of text values")
    if not isinstance(tries, int) or isinstance(tries, bool) or not 0 <= tries < 1 << 31:
        raise ValueError("its tries must be a whole number, 0 or more")
    mature, delay = value.get("mature"), value.get("delay")
    if mature is None and delay is None:
        mature, delay = common.mature, common.delay
    if mature is not None and not isinstance(mature, datetime):
        mature = datetime.fromisoformat(str(mature))
        if mature.tzinfo is None:
            raise ValueError("its mature has no time zone: write 2026-01-31T12:00Z")
    if delay is not None and (
        isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) <= LATEST / 2000
    ):
        raise ValueError("its delay must be a number of seconds that ends before the year 5000")
    check_texts(id, headers)
    return {
        "id": id,
        "payload": dump_json(value["payload"]),
        "headers": (common.headers or {}) | (headers or {}),
        "mature": mature,
        "delay": None if delay is None else round(delay * 1000),
        "tries": tries,
    }


# --- messages out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """What a reservation holds: its tag, by which it is settled, and the messages."""

    tag: str
    messages: list[Message]


def reserve(
    url: str,
    queue: str,
    limit: int = 1,
    *,
    lease: float | None = 120.0,
    timeout: float | None = 0.0,
    consumer: str = "cli",
) -> Taken:
    """Take up to `limit` messages under a tag that is new; none where none comes for `timeout` seconds.

    They are held for `lease` seconds (`None`: for ever), unless `commit`, `rollback` or `release` end that. A
    `timeout` of `None` waits as long as it takes.
    """
    check_tag(consumer)
    if lease is not None and not 0.1 <= lease <= LATEST / 2000:
        raise OptionError(f"lease must be 0.1 seconds or more and end before the year 5000, not {lease}")
    with opened(url) as store:
        store.check_queue(queue)
        tag = f"{consumer}/{uuid.uuid4().hex[:6]}/1"
        return Taken(tag, _reserve(store, queue, tag, limit, lease, timeout))


def _reserve(
    store: Store, queue: str, tag: str, limit: int, lease: float | None, timeout: float | None
) -> list[Message]:
    end = float("inf") if timeout is None else time.monotonic() + timeout
    looked = timeout == 0  # a call that does not wait must not say that it waits
    while True:
        rows = store.reserve(queue, tag, limit, lease=None if lease is None else round(lease * 1000))
        if rows and (found := list(_held(store, queue, tag))):
            return found
        if rows:
            continue  # none of them can be read
        if not looked:
            expect(store, queue, fail=False)
            looked = True
        left = end - time.monotonic()
        if left <= 0:
            return []
        store.wait(queue, round(min(left, 60) * 1000))


def _held(store: Store, queue: str, tag: str) -> Iterator[Message]:
    """What a tag and those below it hold."""
    for one in store.reservations(queue, tag):
        for batch in store.fetch(queue, one.tag, decoded=True):
            yield from messages(batch)


def pop(
    url: str,
    queue: str,
    take: Callable[[list[Message]], None],
    *,
    limit: int | None = 1,
    timeout: float | None = 0.0,
) -> int:
    """Hand messages to `take`, then remove them for good; give their number.

    Up to `limit` (`None`: all), some thousand in one step, until none comes for `timeout` seconds (`None`: never).
    What `take` did not come back from is given back: so a message that was handed over may come again, but none is
    lost.
    """
    with opened(url) as store:
        store.check_queue(queue)
        run = f"cli/{uuid.uuid4().hex[:6]}"
        done = 0
        for sequence in itertools.count(1):
            step = STEP if limit is None else min(STEP, limit - done)
            tag = f"{run}/{sequence}"
            found: list[Message] = []
            try:
                found = _reserve(store, queue, tag, step, 120.0, timeout) if step else []
                if found:
                    take(found)
                    done += store.commit(queue, tag)
            except BaseException as error:
                if found or not isinstance(error, StoreError):  # one that was refused holds none
                    store.rollback(queue, tag, failed=False)
                raise
            if not found:
                break
        return done


# --- outcomes -------------------------------------------------------------------------------------------------------


def commit(url: str, queue: str, tag: str, ids: Collection[str] | None = None, *, history: float = 0.0) -> int:
    """Remove what a tag and those below it hold (of `ids`, where given), and give the number of messages.

    They are kept in the history for so many seconds. What the tag no longer holds is not removed.
    """
    with opened(url) as store:
        _check_settled(store, queue, tag)
        return store.commit(queue, tag, None if ids is None else list(ids), history=round(history * 1000))


def rollback(
    url: str,
    queue: str,
    tag: str,
    ids: Collection[str] | None = None,
    *,
    delay: float = 0.0,
    max_tries: int | None = None,
    dead: str | None = None,
) -> tuple[int, int]:
    """Give back what a tag and those below it hold (of `ids`, where given) as failed, mature in `delay` seconds.

    Where that makes `max_tries` failures, a message moves to the queue `dead` (default `<queue>.dead`) instead. Gives
    the numbers of both.
    """
    with opened(url) as store:
        _check_settled(store, queue, tag)
        if max_tries is not None and max_tries < 1:
            raise OptionError(f"max_tries must be 1 or more, not {max_tries}", option="maxTries")
        grave = dead or dead_letter_queue(queue)
        store.check_queue(grave)
        which = None if ids is None else list(ids)
        return give_back(store, queue, tag, which, delay=round(delay * 1000), max_tries=max_tries, dead=grave)


def _check_settled(store: Store, queue: str, tag: str) -> None:
    store.check_queue(queue)
    check_tag(tag)
    check_exists(store, queue)
    check_free(store, queue, tag)


def harvest(url: str, queue: str, older_than: float | None = None) -> list[str]:
    """Give back what anybody holds, at once and with no try counted; give the ids.

    In the layout `rfq` that is rfq's own harvest: also of what its programs have taken, back to the end of the queue,
    and only of what was published more than `older_than` seconds ago, where that is told, and is not held by ours
    under a lease that lasts.
    """
    with opened(url) as store:
        store.check_queue(queue)
        own = getattr(store, "harvest", None)
        if own is not None:
            given: list[str] = own(queue, None if older_than is None else round(older_than * 1000))
            return given
        if older_than is not None:
            raise UsageError("--older-than needs the layout rfq: leave it out, or use --layout rfq")
        check_free(store, queue)
        held: list[str] = []
        for one in store.reservations(queue):
            ids = _ids(store, queue, one.tag)
            if store.rollback(queue, one.tag, failed=False):
                held += ids
        return held


# --- looking --------------------------------------------------------------------------------------------------------


def _ids(store: Store, queue: str, tag: str) -> list[str]:
    return [id for batch in store.look(queue, tag) for id in batch.column("id").to_pylist()]


def listing(url: str, queue: str, *, held: bool = False) -> list[str]:
    """The ids of the messages that nobody holds, or of those that somebody does: what comes last is the first."""
    with opened(url) as store:
        store.check_queue(queue)
        own = getattr(store, "listq", None)
        if own is not None:
            listed: list[str] = own(queue, "nextlog" if held else "backlog")
            return listed
        reserved = {id for one in store.reservations(queue) for id in _ids(store, queue, one.tag)}
        found: list[tuple[datetime, str]] = []
        for batch in store.peek(queue):
            columns = batch.column("mature").to_pylist(), batch.column("id").to_pylist()
            found += [(due, id) for due, id in zip(*columns, strict=True) if (id in reserved) is held]
        return [id for _, id in sorted(found, reverse=True)]


def peek(url: str, queue: str, limit: int | None = 10, ids: Collection[str] | None = None) -> list[Message]:
    """The first messages in order, or those with these ids, held ones included; nothing is changed."""
    with opened(url) as store:
        store.check_queue(queue)
        check_exists(store, queue)
        where = [] if ids is None else [Condition("id", "in", tuple(ids))]
        return [one for batch in store.peek(queue, where, limit=limit) for one in messages(batch)]


def queues(url: str) -> list[str]:
    """Return the names of the queues, sorted; empty ones too, until they are dropped."""
    with opened(url) as store:
        return store.queues()


# --- between queues, and away ---------------------------------------------------------------------------------------


def move(
    url: str,
    queue: str,
    to: str,
    *,
    ids: Collection[str] | None = None,
    limit: int | None = None,
    create: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Move messages that nobody holds to another queue of the store, and give their number.

    Those with these ids, else the first ones in order: up to `limit`, or as many as the queue holds now. They keep
    id, payload, headers and maturity; their tries start at 0. Some thousand move in one step, so a move may be cut
    short and called again. `progress` is told after each step how many were moved, and how many are wanted.
    Raises `UsageError` where the target does not exist, unless `create`.
    """
    with opened(url) as store:
        store.check_queue(queue)
        store.check_queue(to)
        check_exists(store, queue)
        if not create:
            check_exists(store, to, "To create it, use --create (create=True).")
        if ids is not None:
            named = list(dict.fromkeys(ids))
            steps: Iterable[dict[str, Any]] = ({"ids": named[at : at + STEP]} for at in range(0, len(named), STEP))
            wanted = len(named)
        else:
            sizes = store.sizes(queue)
            wanted = min(sizes.ready + sizes.scheduled, LATEST if limit is None else limit)
            steps = ({"limit": min(STEP, wanted - at)} for at in range(0, wanted, STEP))
        moved = 0
        for step in steps:
            moved += store.move(queue, to, **step)
            if progress is not None:
                progress(moved, wanted)
        return moved


def purge(url: str, queue: str, *, held: bool = False) -> list[str]:
    """Remove the messages that nobody holds, or those that somebody does; give their ids, in order.

    What is held by a living query is refused; who else holds a message that is gone is told so when it is settled. In
    the layout `rfq`, which does not know who holds what, it is rfq's own purge.
    """
    with opened(url) as store:
        store.check_queue(queue)
        own = getattr(store, "purge_list", None)
        if held:
            if own is None:
                check_free(store, queue)
            return _purge_held(store, queue) if own is None else list(own(queue, "nextlog"))
        run = f"cli/{uuid.uuid4().hex[:6]}"
        gone: list[str] = [] if own is None else list(own(queue, "backlog"))
        for sequence in itertools.count(1):
            tag = f"{run}/{sequence}"
            if not store.reserve(queue, tag, PAGE_ROWS):
                break
            ids = _ids(store, queue, f"{tag}/0")
            if store.commit(queue, tag):
                gone += ids
        # What is left is scheduled, and cannot be reserved.
        later = [id for batch in store.peek(queue) for id in batch.column("id").to_pylist()]
        held_now = {id for one in store.reservations(queue) for id in _ids(store, queue, one.tag)}
        if store.purge(queue):
            gone += [id for id in later if id not in held_now]
        return gone


def _purge_held(store: Store, queue: str) -> list[str]:
    gone: list[str] = []
    for one in store.reservations(queue):
        ids = _ids(store, queue, one.tag)
        if store.commit(queue, one.tag):
            gone += ids
    return gone


# --- pauses ---------------------------------------------------------------------------------------------------------


def pause(url: str, queue: str) -> None:
    """Let nobody take from the queue, whoever it is, until `resume`; what is held stays held, and pushes go on."""
    with opened(url) as store:
        store.check_queue(queue)
        store.pause(queue)


def resume(url: str, queue: str) -> None:
    """Let everybody take from the queue again."""
    with opened(url) as store:
        store.check_queue(queue)
        store.resume(queue)


def paused(url: str, queue: str) -> bool:
    """Return whether the queue is paused."""
    with opened(url) as store:
        store.check_queue(queue)
        return store.paused(queue)
