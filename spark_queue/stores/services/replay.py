"""Replays: push messages of a queue's history again, exactly once for each name of a replay.

A replay is a sink with one batch (`ledger.py`): its messages are staged, the ledger decides, then
they are published. So another call completes an interrupted replay. A completed one pushes nothing
again, even if its messages were consumed.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from spark_queue.errors import OptionError, UsageError
from spark_queue.messages.columns import header_dicts, headers_array
from spark_queue.messages.ids import OBJECT_ID
from spark_queue.messages.schema import PUSHES
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.options.parsers import PLAIN_NAME
from spark_queue.stores.base import Store
from spark_queue.stores.services.ledger import Writer, ledger_of, stage_of
from spark_queue.stores.services.publishing import Publisher

#: Headers of a replayed message: the name of the replay, and the id of the original message.
REPLAY_HEADER, REPLAY_OF_HEADER = "x-replay", "x-replay-of"


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay of `queue` to the queue `to`, with `rate` messages per second (`None`: all at once).

    `filters`: the selection as text. Raises `OptionError` for an invalid name or rate.
    """

    queue: str
    name: str
    to: str
    rate: float | None
    filters: str

    def __post_init__(self) -> None:
        if not PLAIN_NAME.fullmatch(self.name):
            raise OptionError(
                f"{self.name!r} cannot name a replay: 1 to 100 letters, digits and _ . : @ -", option="name"
            )
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise OptionError(f"rate must be more than 0 messages per second, not {self.rate}", option="rate")

    @property
    def sink(self) -> str:
        return f"replay-{self.name}-{sha256(self.queue.encode()).hexdigest()[:8]}"

    @property
    def _stage_prefix(self) -> str:
        """The prefix of its stages, which depends on target, rate and filters."""
        asked = repr((self.to, self.rate, self.filters))
        return stage_of(self.sink, 0, sha256(asked.encode()).hexdigest()[:12])

    def is_decided(self, store: Store) -> bool:
        """Return whether the replay is decided, so that it only must be published.

        Raises `UsageError` if a replay of this name had other arguments.
        """
        ledger = ledger_of(store, self.sink)
        if ledger and not all(one.startswith(self._stage_prefix) for one in ledger.stages):
            raise UsageError(
                f"replay {self.name!r} of queue {self.queue!r} was started with other filters before: choose "
                "another name",
                queue=self.queue,
            )
        return ledger is not None

    def unpublished(self, store: Store) -> int:
        """Return how many messages of a decided replay are not published yet."""
        ledger = ledger_of(store, self.sink)
        return sum(one.rows for one in store.staged(self.sink) if ledger and one.stage in ledger.stages)

    def run(self, store: Store, batches: Iterable[pa.RecordBatch]) -> int:
        """Push messages of HISTORY batches, or publish the rest of a decided replay.

        Return the number of new messages. Raises `UsageError` as `is_decided` does.
        """
        stage, staged = f"{self._stage_prefix}-{uuid.uuid4().hex[:12]}", 0
        for batch in batches:
            staged += store.stage(self.to, stage, self._to_pushes(batch, staged))
        if not staged and not self.is_decided(store):
            return 0  # a later call may find some
        return Publisher({"": store}, self.sink).publish_batch(0, [stage], {"": staged}, Writer.JOB)

    def _to_pushes(self, batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
        """Return a HISTORY batch as a PUSHES batch; `before`: how many messages precede it."""
        n, ids = batch.num_rows, batch.column("id").to_pylist()
        rows = zip(header_dicts(batch), ids, strict=True)
        columns = {
            "id": pa.array([replay_id(self.name, id) for id in ids], pa.string()),
            "payload": batch.column("payload"),
            "payload_kind": batch.column("payload_kind"),
            "headers": headers_array(
                [headers | {REPLAY_HEADER: self.name, REPLAY_OF_HEADER: id} for headers, id in rows]
            ),
            "mature": batch.column("mature"),
            "delay": pa.nulls(n, pa.int64()),
            "tries": pa.repeat(pa.scalar(0, pa.int32()), n),
        }
        if self.rate is not None:
            columns["mature"] = pa.nulls(n, PUSHES.field("mature").type)
            columns["delay"] = pa.array(
                [round(min((before + row) / self.rate * 1000, 2 * MAX_DURATION_MS)) for row in range(n)], pa.int64()
            )
        return pa.RecordBatch.from_arrays([columns[name] for name in PUSHES.names], schema=PUSHES)


def replay_id(name: str, id: str) -> str:
    """Return the id of a replayed message.

    Ids in our form keep their order: only their middle changes.
    """
    if not OBJECT_ID.fullmatch(id):
        return sha256(f"{name}\0{id}".encode()).hexdigest()[:24]
    return id[:8] + sha256(f"{name}\0{id[8:18]}".encode()).hexdigest()[:10] + id[18:]
