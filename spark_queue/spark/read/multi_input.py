"""Read several queues and logs, in one or several stores, as one source with common batches.

A batch has one number in all queues, and is reserved under `consumer/sequence.by` in each. With
`zip` every input contributes the same number of messages: as many as the shortest one has. Surplus
messages are released before Spark gets the offset. With `alts` one input contributes all messages.
The offset names the messages of each input. So a restarted query reads the same rows, even if
messages were pushed meanwhile.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypedDict

from spark_queue.errors import CheckpointError, FencedError
from spark_queue.options.inputs import ALTS, LOG
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import EXACTLY_ONCE
from spark_queue.spark.read.at_most_once import planned_as
from spark_queue.spark.read.fetch import Rows, Share
from spark_queue.spark.read.log_input import LogInput
from spark_queue.spark.read.offsets import READ, VERSION, Offset, delivery_of
from spark_queue.spark.read.queue_input import QueueInput
from spark_queue.spark.read.wait_any import Waiting
from spark_queue.stores.base import spread

log = logging.getLogger(__name__)


class Offsets(TypedDict, total=False):
    """The offset of a consumer of several inputs: as `Offset`, with inputs and rows by binding.

    `by`: by binding too, since each queue has its own note of the consumer. `places`: for each log,
    the places before and after the rows of the last batch.
    """

    v: int
    inputs: dict[str, dict[str, str]]
    consumer: str
    seq: int
    by: dict[str, int]
    rows: dict[str, list[int]]
    delivery: str
    places: dict[str, list[dict[str, Any]]]


def views(offset: Offsets) -> dict[str, Offset]:
    """Return the offset of each input alone, by binding."""
    rows, places, by = offset.get("rows", {}), offset.get("places", {}), offset.get("by", {})
    found: dict[str, Offset] = {}
    for binding, one in offset["inputs"].items():
        found[binding] = {
            "v": offset["v"],
            "queue": one["queue"],
            "consumer": offset["consumer"],
            "seq": offset["seq"],
            "by": by.get(binding, 0),
            "rows": rows.get(binding, []),
        }
        if "delivery" in offset:
            found[binding]["delivery"] = offset["delivery"]
        if binding in places:
            found[binding]["places"] = places[binding]
    return found


def cut(delivery: str, ranges: Mapping[str, Sequence[Share]], least: int = 1) -> list[Rows]:
    """Return the rows of each task of a batch. `ranges`: the messages of each input, in order.

    The n-th messages of all inputs are in the same task. There are at most as many tasks as the
    largest number of ranges of an input, and up to that at least `min_tasks`.
    """
    total = sum(one.rows or 0 for one in next(iter(ranges.values())))
    found, first = [], 0
    for rows in spread(total, max(map(len, ranges.values())), least):
        of = {binding: _within(shares, first, first + rows) for binding, shares in ranges.items()}
        found.append(Rows(delivery, of))
        first += rows
    return found


def _within(shares: Sequence[Share], first: int, last: int) -> list[Share]:
    """Return the ranges of the messages from number `first` to before `last`."""
    found, begin = [], 0
    for one in shares:
        rows = one.rows or 0
        low, high = max(first, begin), min(last, begin + rows)
        if low < high:
            found.append(one.part(low - begin, high - begin))
        begin += rows
    return found


class PlannedInput(Protocol):
    """One of several inputs: a `QueueInput` or `LogInput`. It numbers batches as the query does."""

    def check(self, end: Offset) -> bool:
        """Return whether the batch of `end` is not removed yet.

        Raises `CheckpointError` or `FencedError` if it must not be removed.
        """

    def remove(self, end: Offset) -> None:
        """Remove the messages of a batch for which `check` returned true."""

    def wait(self, timeout: int) -> bool:
        """Wait up to `timeout` ms until a message is ready; return whether one is."""

    def watching(self) -> AbstractContextManager[Callable[[int], bool]]:
        """Yield a `wait` for another thread, with its own connection."""

    def ready(self, most: int) -> int:
        """Return the number of ready messages, up to `limit`."""

    def take(self, start: Offset, most: int) -> list[int]:
        """Take up to `limit` messages; return their rows by partition, none if nothing is ready."""

    def trim(self, start: Offset, rows: list[int], most: int) -> list[int]:
        """Keep the first `limit` of the messages taken after `start`; return the rows that stay."""

    def reserved(self, start: Offset, rows: list[int]) -> None:
        """Record that this process took the batch after `start`."""

    def hold(self, end: Offset) -> list[Share]:
        """Hold a batch while its tasks run; return the ranges they fetch, none if it is dropped."""

    def ranges(self, end: Offset, *, again: bool = False) -> list[Share]:
        """Return the ranges of a batch's messages, in order; of a `replayed` one, of those left."""

    def missing(self, end: Offset) -> int:
        """Return the number of a batch's messages that are no longer there."""

    def idle(self) -> None:
        """Do the work that is due while no message is ready."""

    def stop_at_now(self) -> None:
        """Bound the run: read only messages that are due by now."""

    def backlog(self) -> dict[str, Any]:
        """Return the place of the query in this input, and the sizes of the input."""

    def close(self) -> None:
        """End threads and connections."""


class Inputs:
    """Plans the batches of several inputs, as `Consumer` does for one queue."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.inputs is not None
        self._options = options
        self._facts = {binding: one.facts for binding, one in options.inputs.items()}
        self.members: dict[str, PlannedInput] = {}
        self.queues: dict[str, QueueInput] = {}
        self._logs: dict[str, LogInput] = {}
        for binding in options.inputs:
            one = options.of(binding)
            if one.mode == LOG:
                self.members[binding] = self._logs[binding] = LogInput(one)
            else:
                self.members[binding] = self.queues[binding] = QueueInput(one)
        self._initial: Offsets | None = None
        self._planned: Offsets | None = None
        self._reserved: Offsets | None = None  # the batch that this process reserved last
        self._waiting = Waiting(member.watching for member in self.members.values())
        self._bounded = False

    @property
    def initial(self) -> Offsets:
        """The offset at which a query with a new checkpoint begins."""
        if self._initial is None:
            name = self._options.consumer or uuid.uuid4().hex[:12]
            self._initial = {
                "v": VERSION,
                "inputs": self._facts,
                "consumer": f"{name}/{uuid.uuid4().hex[:6]}",
                "seq": 0,
            }
            if places := {binding: [log.begin()] * 2 for binding, log in self._logs.items()}:
                self._initial["places"] = places
        return self._initial

    @property
    def planned(self) -> Offsets:
        """The end of the batch that was planned last."""
        return self._planned or self.initial

    @property
    def _only(self) -> QueueInput | None:
        """The queue, if it is the only input: it is then read as without `inputs`."""
        return next(iter(self.queues.values()), None) if len(self.members) == 1 else None

    def next(self, start: Offsets, most: int, *, ahead: bool = False) -> Offsets:
        """Commit up to `start`, reserve the next batch; return its end, `start` if there is none.

        Raises `CheckpointError` if `start` is of other inputs, and as `Consumer.next`.
        """
        self._check(start)
        of = views(start)
        if self._only:
            ((binding, view),) = of.items()
            end = self._only.consumer.next(view, most, ahead=ahead)
            rows = {binding: end["rows"]} if end["seq"] > start["seq"] else {}
        else:
            self.commit(start)
            for binding, queue in self.queues.items():
                queue.tidy(of[binding])
            take = self._of_one if self._options.combine == ALTS else self._of_each
            rows = take(of, most)
            for binding in rows:
                self.members[binding].reserved(of[binding], rows[binding])
        if not rows:
            return start
        by = {binding: queue.number for binding, queue in self.queues.items()}
        found: Offsets = {**start, "v": VERSION, "seq": start["seq"] + 1, "by": by, "rows": rows}
        if places := {binding: log.passed(sum(rows.get(binding, []))) for binding, log in self._logs.items()}:
            found["places"] = places
        self._reserved = planned_as(found, self._options)
        return self._reserved

    def _of_each(self, of: Mapping[str, Offset], most: int) -> dict[str, list[int]]:
        """Reserve the same number of messages of every input; none if an input has none."""
        end = time.monotonic() + self._options.wait_timeout / 1000
        if not all(one.wait(_left(end)) for one in self.members.values()):
            self._idle()
            return {}
        for member in self.members.values():
            most = member.ready(most)
        rows: dict[str, list[int]] = {}
        for binding, member in self.members.items():
            if most:
                rows[binding] = member.take(of[binding], max(most, 1))
                most = min(most, sum(rows[binding]))
        kept = {binding: self.members[binding].trim(of[binding], held, most) for binding, held in rows.items()}
        return kept if most else {}

    def _of_one(self, of: Mapping[str, Offset], most: int) -> dict[str, list[int]]:
        """Reserve messages of the first input that has some."""
        if not (self._bounded or self._waiting.any(self._options.wait_timeout)):
            self._idle()
            return {}
        for binding, member in self.members.items():
            rows = member.take(of[binding], most)
            if rows:
                return {binding: rows}
        return {}

    def plan(self, start: Offsets, end: Offsets) -> list[Rows]:
        """Start and hold a batch in all queues, and return the rows of each task.

        Raises `CheckpointError` if an offset is of other inputs. Raises `FencedError` if a replayed
        batch lost messages and the delivery is exactly-once.
        """
        self._check(start)
        self._check(end)
        self._planned = end
        nothing = Rows(delivery_of(end), {})
        if end["seq"] == start["seq"]:
            return [] if end["seq"] else [nothing]  # see `Consumer.plan`
        until = views(end)
        chosen = [binding for binding, parts in end.get("rows", {}).items() if sum(parts)]
        for binding, queue in self.queues.items():
            queue.start(until[binding])  # in all queues, so that none of them accepts an older checkpoint
        shares = {binding: self.members[binding].hold(until[binding]) for binding in chosen}
        if self._only:
            return [Rows(delivery_of(end), {binding: [one]}) for binding in chosen for one in shares[binding]]
        again = self._reserved != end
        if not all(shares.values()) or (again and not self._whole(until, chosen)):
            return [nothing]
        ranges = {binding: self.members[binding].ranges(until[binding], again=again) for binding in chosen}
        return cut(delivery_of(end), ranges, self._options.min_partitions or 1) or [nothing]

    def _whole(self, until: Mapping[str, Offset], chosen: Sequence[str]) -> bool:
        """Return whether a replayed batch still holds all its messages.

        If some are missing, it is unknown which of the others belong together. Then all are
        released, and delivered again in other batches. If the delivery is exactly-once, you must
        decide that: raises `FencedError`.
        """
        gone = {binding: self.members[binding].missing(until[binding]) for binding in chosen}
        if len(chosen) == 1 or not any(gone.values()):
            return True
        rows = sum(until[chosen[0]]["rows"])
        left = [binding for binding in chosen if gone[binding] < rows]
        if not left:
            return False
        tag = delivery_of(until[chosen[0]])
        held = ", ".join(f"{rows - gone[binding]} of {rows} of {until[binding]['queue']}" for binding in chosen)
        if self._options.delivery == EXACTLY_ONCE:
            raise FencedError(
                f"batch {tag}: only {held} messages are still reserved, the others were released, or removed because "
                "the batch was written. Messages of several inputs belong together, so the batch cannot be repeated. "
                "Settle the rest, then start the query again: "
                + "; ".join(
                    f"spark-queue recover URL {until[b]['queue']} {until[b]['consumer']} --sink URL" for b in left
                ),
                tag=tag,
            )
        for binding in left:
            if binding in self.queues:  # a log reserves nothing
                self.queues[binding].release(until[binding])
        log.warning(
            "batch %s: only %s messages are still reserved, so the batch cannot be repeated: they are released, and "
            "delivered again in other batches",
            tag, held,
        )  # fmt: skip
        return False

    def commit(self, end: Offsets) -> None:
        """Remove the messages of the batch of `end`, unless that is done.

        Every input is checked first: if one refuses the checkpoint, no queue loses a message.
        Raises `CheckpointError` if the offset is of other inputs, and as `Batches.commit`.
        """
        self._check(end)
        of = views(end)
        for binding in [one for one, member in self.members.items() if member.check(of[one])]:
            self.members[binding].remove(of[binding])

    def stop_at_now(self) -> None:
        """Bound the run: reserve only messages that are due by now."""
        self._bounded = True
        for member in self.members.values():
            member.stop_at_now()

    def backlog(self) -> dict[str, Any]:
        """Return the last planned offset, and the sizes of each input."""
        place = {key: value for key, value in self.planned.items() if key in ("v", "consumer", "seq")}
        own = (*place, "reader", "places")
        inputs = {
            binding: self._facts[binding] | {k: v for k, v in one.backlog().items() if k not in own}
            for binding, one in self.members.items()
        }
        return place | {"inputs": inputs}

    @property
    def holds_ahead(self) -> bool:
        """Whether `close` has a prefetched batch to release."""
        return any(queue.consumer.holds_ahead for queue in self.queues.values())

    def close(self) -> None:
        """Close all inputs; see `Consumer.close`."""
        for queue in self.queues.values():
            queue.consumer.leave()  # all of them first: closing one may take time
        self._waiting.close()
        for member in self.members.values():
            member.close()

    def _idle(self) -> None:
        for member in self.members.values():
            member.idle()

    def _check(self, offset: Offsets) -> None:
        """Raise `CheckpointError` if an offset of Spark is of other inputs."""
        inputs = self._facts
        if offset.get("v") not in READ or offset.get("inputs") == inputs:  # an input refuses an unknown version
            return
        was: Mapping[str, Mapping[str, Any]] = offset.get("inputs") or {"queue": {"queue": offset.get("queue")}}
        raise CheckpointError(
            f"the checkpoint is that of a query on {_named(was)}, but option 'inputs' has {_named(inputs)}: a query "
            "keeps its inputs, by binding and queue, in any order; others need a new checkpoint",
            inputs=inputs,
        )


def _named(inputs: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{binding}: {'/'.join(str(one[name]) for name in ('ns', 'queue') if name in one)}"
        for binding, one in inputs.items()
    )


def _left(end: float) -> int:
    """Return the time (ms) until `end` (monotonic s); 0 if that has passed."""
    return max(0, round((end - time.monotonic()) * 1000))
