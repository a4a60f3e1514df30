"""Redis layouts with lists, by `?layout=` in the URL: keuss' `redis-list`, and `rfq`.

Ready messages are in the layout's own list, from which other programs take them too. Other messages
and the history are under keys that begin with `spark_queue.<layout>:`, as in `store.py`. A message
moves between them in one step: see `lua/lists/lists.lua`. Neither layout has buckets.

* The order is that of the list: first come, first served, whatever the due times are. A message
  that was rolled back goes to the end of the list, one whose lease expired to its front.
* A due scheduled message comes to the list when one of our clients reserves or pushes. A message
  whose lease expired comes when one reserves. Before that, other programs do not see them.
* A move or a purge of free messages takes the whole list aside, and puts the rest of it back. After
  a crash in the middle, it stays aside until one of our clients reserves or pushes.
* A `peek` may miss messages that are rolled back at the same time.

`redis-list` has no reservations, ids or due times. A message that keuss takes is gone. One that
keuss has pushed gets an id when one of our clients takes it. It is not known whether the list
contains an id, so a repeated push adds its messages again. A repeated publish does not.

`rfq` calls a queue a topic. A payload is an object of strings and numbers, and comes back as one of
strings. Its `nextlog` contains all reserved messages, ours and those of its own programs. rfq's
harvest puts all of them back. If consumers work on them, two then work on a message, and the first
to finish removes it. An id whose message is gone is dropped and counted: see `lost`.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, ClassVar, Literal, TypeVar

import orjson
import pyarrow as pa
import redis

from spark_queue.errors import OptionError
from spark_queue.fork_locks import add_lock
from spark_queue.messages.json_text import load_json
from spark_queue.messages.schema import MESSAGES
from spark_queue.options.url import StoreUrl
from spark_queue.stores.base import PAGE_ROWS, rejected_rows_error
from spark_queue.stores.redis.documents import as_records
from spark_queue.stores.redis.keys import DueId, key_prefix
from spark_queue.stores.redis.store import SCRIPT_CHUNK, RedisStore, load_scripts
from spark_queue.stores.spans import WHOLE, Sample, Span
from spark_queue.stores.support.damaged import Records, filter_records, first_records, id_of
from spark_queue.stores.types import Condition, DeadLetterInfo, LayoutFeature, Selection, View

T = TypeVar("T")


@cache
def scripts(layout: str) -> dict[str, tuple[str, str]]:
    """Return the scripts of one of these layouts: see `load_scripts`."""
    return load_scripts(layout=layout)


class ListStore(RedisStore):
    """Queues of keuss' `redis-list`."""

    layout_name: ClassVar[str] = "redis-list"
    unsupported: ClassVar[frozenset[LayoutFeature]] = frozenset({"order", "ids", "buckets"})

    def _script(self, name: str) -> tuple[str, str]:
        return scripts(self.layout_name)[name]

    def _list_keys(self, queue: str) -> Sequence[str]:
        return (f"keuss:q:list:{queue}",)

    def _message_lists(self, queue: str) -> Sequence[str]:
        return self._list_keys(queue)

    # --- moves, purges and drops ------------------------------------------------------------------

    def _move(self, queue: str, to: str, selection: Selection, dead_letter: DeadLetterInfo | None) -> int:
        if selection.tag is not None:
            return super()._move(queue, to, selection, dead_letter)
        self._fill_index(queue)
        moved = super()._move(queue, to, selection, dead_letter)
        self._run_until_done("deliver", queue)
        return moved

    def _purge(self, queue: str, ids: Sequence[str] | None) -> int:
        self._fill_index(queue)
        return super()._purge(queue, ids)

    def _fill_index(self, queue: str) -> None:
        """Move the list to the index, where scripts can select messages."""
        self._sweep_expired(queue)
        self._run_until_done("fill", queue)

    def _run_until_done(self, script: str, queue: str, *arguments: str) -> None:
        """Run a script until it returns that nothing is left to do. Raises `StoreError`."""
        while self._run(script, queue, *arguments):
            pass

    def _drop(self, queue: str) -> None:
        super()._drop(queue)
        with self._connection() as client:
            client.unlink(*self._list_keys(queue))

    # --- reading ----------------------------------------------------------------------------------

    def _sample(self, queue: str, view: View, size: int) -> Sample:
        # Messages move within the list, and those of keuss have no ids.
        return super()._sample(queue, view, size) if view == "history" else Sample()

    def _peek(
        self, queue: str, where: Sequence[Condition], limit: int | None, view: View, rows: int, span: Span = WHOLE
    ) -> Iterator[Records]:
        if view == "history" or limit == 0:
            yield from super()._peek(queue, where, limit, view, rows, span)
            return
        free, held, waiting = self._attempt(self._snapshot, queue)
        indexed = self._document_pages(queue, "messages", sorted(free + held), rows)
        parts = chain(self._read_lists(queue, waiting, {id for _, id in free + held}, rows), indexed)
        pages = (filter_records(as_records(queue, *part), where) for part in parts)
        yield from first_records(pages, MESSAGES, limit, rows)

    def _read_lists(
        self, queue: str, waiting: list[list[bytes]], known_ids: set[bytes], rows: int
    ) -> Iterator[tuple[list[DueId], list[bytes]]]:
        """Yield the messages of the lists, the next one first, without those of `known_ids`."""
        (documents,) = waiting
        now, seen = self.now(), set(known_ids)
        found: list[DueId] = []
        for place, document in enumerate(reversed(documents)):
            due, id = _parse_due_and_id(document, now)
            if not id or id in seen:
                id = b"list:%d" % place  # it gets its id when it is reserved
            seen.add(id)
            found.append((due, id))
        for start in range(0, len(found), rows):
            stop = min(start + rows, len(found))
            yield found[start:stop], [documents[-1 - place] for place in range(start, stop)]


def _parse_due_and_id(document: bytes, now: int) -> DueId:
    """Return the due time (ms) and id of a document; of one of keuss, `now` and an empty id."""
    try:
        fields = orjson.loads(document)
        return int(fields.get("mature", now)), str(fields.get("_id", "")).encode()
    except (ValueError, TypeError, AttributeError, OverflowError):  # it is no document: its reader reports that
        return now, b""


class RfqStore(ListStore):
    """Topics of rfq. New ids have the form of rfq's ids: UUIDs of version 1."""

    layout_name: ClassVar[str] = "rfq"
    parameters: ClassVar[tuple[str, ...]] = (*ListStore.parameters, "front")
    unsupported: ClassVar[frozenset[LayoutFeature]] = frozenset({"order", "payloads", "buckets", "holds", "pushed"})
    unsupported_payloads: ClassVar[tuple[object, ...]] = (
        None, True, 1, 1.5, "text", [], {}, ["a"], {"a": None}, {"a": {}}, {"a": [1]},
    )  # fmt: skip

    @classmethod
    def resolve(cls, url: str) -> str:
        url = super().resolve(url)
        address = StoreUrl.parse(url)
        front = address.parameters.get("front", "false")
        if front not in ("true", "false"):
            raise OptionError(
                f"option 'url': front={address.masked_parameter('front')} must be true or false", option="url"
            )
        return url

    def __init__(self, url: str, *, retry_timeout: int = 5_000) -> None:
        super().__init__(url, retry_timeout=retry_timeout)
        #: Whether pushed and published messages go to the front of the topic, in their order.
        self.front = self._address.parameters.get("front") == "true"

    def _relies_on_signals(self, queue: str) -> bool:
        return False  # rfq's own programs send none

    def _list_keys(self, queue: str) -> Sequence[str]:
        prefix = f"{key_prefix(self.layout_name)}:{queue}"
        return f"rfq:{queue}:backlog", f"rfq:{queue}:nextlog", f"{prefix}:more", f"{prefix}:lost"

    def _message_lists(self, queue: str) -> Sequence[str]:
        return self._list_keys(queue)[:2]

    def native_ids(self, made: pa.Array) -> pa.Array:
        return pa.array(_uuid_generator.take(len(made)), pa.string())

    def _to_records(self, queue: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch = super()._to_records(queue, batch)
        payloads: list[bytes] = []
        wrong: dict[int, str] = {}
        columns = (batch.column(name).to_pylist() for name in ("payload", "payload_kind"))
        for row, (payload, kind) in enumerate(zip(*columns, strict=True)):
            try:
                payloads.append(_flatten_payload(payload, kind))
            except ValueError as error:
                wrong[row] = str(error)
        if wrong:
            raise rejected_rows_error(queue, batch, wrong)
        place = batch.schema.get_field_index("payload")
        return batch.set_column(place, batch.schema.field(place), pa.array(payloads, pa.binary()))

    def _run(self, script: str, queue: str, *arguments: Any, extra_keys: Sequence[str] = ()) -> Any:
        if self.front and script in ("push", "publish"):
            arguments = (*arguments, "front")
        return super()._run(script, queue, *arguments, extra_keys=extra_keys)

    def _push_order(self, parts: list[T]) -> list[T]:
        return parts[::-1] if self.front else parts

    # --- the operations of rfq's own tools --------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the topics that hold messages, sorted; rfq does not know empty ones."""
        return sorted(self._attempt(self._queues))

    def listq(self, queue: str, which: Literal["backlog", "nextlog"]) -> list[str]:
        """Return the ids of the backlog or the nextlog, the newest first. Raises `OptionError`."""
        self.check_queue(queue)

        def read() -> list[str]:
            with self._connection() as client:
                return [id.decode(errors="replace") for id in client.lrange(_list_key(queue, which), 0, -1)]

        return self._attempt(read)

    def harvest(self, queue: str, older_than: int | None = None) -> list[str]:
        """Put reserved messages back behind the waiting ones. Return the ids, first reserved first.

        Without `older_than`, all of them, as rfq does, even if consumers work on them. With it,
        only those published longer ago (ms) that no lease of ours holds. Their ids must be UUIDs of
        version 1, which contain that time. Messages of our expired leases go to the front. Each
        message moves in one step. Raises `OptionError` if `older_than` is negative.
        """
        self.check_queue(queue)
        if older_than is not None and older_than < 0:
            raise OptionError(f"older_than must be 0 ms or more, not {older_than} ms", older_than=older_than)
        found: list[bytes] = []
        if older_than is not None:
            found = self._attempt(self._run, "harvest", queue, "aged", older_than)
        else:
            left = self._attempt(self._nextlog_length, queue)
            while left > 0 and (ids := self._attempt(self._run, "harvest", queue, min(left, SCRIPT_CHUNK))):
                found += ids
                left -= len(ids)
        if found:
            self._notify(queue)
        return [id_of(id) for id in found]

    def _nextlog_length(self, queue: str) -> int:
        with self._connection() as client:
            return int(client.llen(_list_key(queue, "nextlog")))

    def purge_list(self, queue: str, which: Literal["backlog", "nextlog"]) -> list[str]:
        """Remove all waiting or all reserved messages, of any program. Return ids, oldest first.

        Atomic in parts of some thousand messages. Raises `OptionError` for an unknown list.
        """
        self.check_queue(queue)
        found: list[str] = []
        while ids := self._attempt(self._run, "purge", queue, _list_key(queue, which).rpartition(":")[2]):
            found += [id_of(id) for id in ids]
        return found

    def lost(self, queue: str) -> int:
        """Return how many ids were found without a message since the topic was last dropped."""

        def read() -> int:
            with self._connection() as client:
                return int(client.get(self._list_keys(queue)[3]) or 0)

        return self._attempt(read)

    def _read_lists(
        self, queue: str, waiting: list[list[bytes]], known_ids: set[bytes], rows: int
    ) -> Iterator[tuple[list[DueId], list[bytes]]]:
        backlog, nextlog = waiting
        ids = [id for id in dict.fromkeys(chain(reversed(backlog), reversed(nextlog))) if id not in known_ids]
        now = self.now()
        for start in range(0, len(ids), min(rows, PAGE_ROWS)):
            part = self._attempt(self._read_messages, queue, ids[start : start + min(rows, PAGE_ROWS)], now)
            if part[0]:
                yield part

    def _read_messages(self, queue: str, ids: Sequence[bytes], now: int) -> tuple[list[DueId], list[bytes]]:
        """Return those of these messages that exist, as rows and documents. Raises `StoreError`."""
        with self._connection() as client:
            pipeline = client.pipeline(transaction=False)
            for id in ids:
                pipeline.hgetall(b"rfq:%b:message:%b" % (queue.encode(), id))
            pipeline.hmget(self._list_keys(queue)[2], ids)
            *flats, details = pipeline.execute(raise_on_error=False)
            if isinstance(details, redis.RedisError):
                raise details
        rows: list[DueId] = []
        documents: list[bytes] = []
        for id, flat, detail in zip(ids, flats, details, strict=True):
            if isinstance(flat, dict) and flat:  # else the message is gone, or its key is no hash
                tries, due, headers = detail.split(b" ", 2) if detail else (b"0", b"", b"{}")
                moment = int(due) if due else min(now, published_at(id.decode(errors="replace")) or now)
                rows.append((moment, id))
                documents.append(_build_document(id, flat, tries, headers, moment))
        return rows, documents

    def _drop(self, queue: str) -> None:
        self._check_is_queue(queue)
        self._run_until_done("purge", queue, "backlog")
        self._run_until_done("purge", queue, "nextlog")
        with self._connection() as client:
            rest = client.zrange(self._keys(queue).moments, 0, -1)
            for start in range(0, len(rest), SCRIPT_CHUNK):
                some = rest[start : start + SCRIPT_CHUNK]
                client.unlink(*(b"rfq:%b:message:%b" % (queue.encode(), id) for id in some))
        super()._drop(queue)


def _list_key(queue: str, which: str) -> str:
    if which not in ("backlog", "nextlog"):
        raise OptionError(f"{which!r} is not a list of a topic: use backlog or nextlog", which=which)
    return f"rfq:{queue}:{which}"


def _build_document(id: bytes, flat: dict[bytes, bytes], tries: bytes, headers: bytes, due: int) -> bytes:
    """Return the document of a message of rfq, as `lua/rfq/rfq.lua` builds it."""
    fields = {name.decode(errors="replace"): one.decode(errors="replace") for name, one in flat.items()}
    return b'{"_id":%b,"payload":%b,"tries":%b,"hdrs":%b,"mature":%d}' % (
        orjson.dumps(id.decode(errors="replace")), orjson.dumps(fields), tries, headers, due,
    )  # fmt: skip


def _flatten_payload(payload: bytes, kind: str) -> bytes:
    """Return the payload with all values as strings. Raises `ValueError` with the broken rule."""
    value = load_json(payload) if kind == "json" else None
    if not isinstance(value, dict) or not value:
        raise ValueError("its payload must be an object with fields: a message of rfq is a flat map")
    for name, one in value.items():
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise ValueError(f"its field {name!r} must be a string or a number, as in messages of rfq")
    return orjson.dumps({name: one if isinstance(one, str) else repr(one) for name, one in value.items()})


# --- ids ------------------------------------------------------------------------------------------

#: Steps of 100 ns between the day from which UUIDs of version 1 count (15 October 1582) and 1970.
GREGORIAN_OFFSET = 0x01B21DD213814000


def published_at(id: str) -> int | None:
    """Return when a message was published (ms), or `None` if its id is no UUID of version 1."""
    try:
        found = uuid.UUID(hex=id)
    except ValueError:
        return None
    return (found.time - GREGORIAN_OFFSET) // 10_000 if found.version == 1 else None


class _UuidGenerator:
    """UUIDs of version 1 with a random node, as those of rfq; each is later than the one before."""

    def __init__(self) -> None:
        self._lock: threading.Lock
        add_lock(self, "_lock")
        self._pid = self._last = 0

    def take(self, n: int) -> list[str]:
        """Return `n` ids, 32 hex digits each."""
        with self._lock:
            if self._pid != os.getpid():  # a fork must not use its parent's node
                self._pid = os.getpid()
                random_source = random.SystemRandom()
                self._rest = (
                    f"{0x8000 | random_source.getrandbits(14):04x}{random_source.getrandbits(48) | 1 << 40:012x}"
                )
            first = max(time.time_ns() // 100 + GREGORIAN_OFFSET, self._last + 1)
            self._last = first + n - 1
        ticks = range(first, first + n)
        return [f"{t & 0xFFFFFFFF:08x}{t >> 32 & 0xFFFF:04x}1{t >> 48:03x}{self._rest}" for t in ticks]


_uuid_generator = _UuidGenerator()
