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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from spark_queue.errors import CheckpointError, FencedError
from spark_queue.options.inputs import ALTS, LOG, ZIP
from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.deadly_batch import check_deaths
from spark_queue.spark.read.delivery import is_dropped, mark_delivery
from spark_queue.spark.read.fetch import ZippedRange
from spark_queue.spark.read.log_input import LogInput
from spark_queue.spark.read.memory_limit import MemoryLimit
from spark_queue.spark.read.offsets import (
    OFFSET_VERSION,
    READABLE_VERSIONS,
    MultiInputOffset,
    Offset,
    delivery_of,
    input_offsets,
    new_consumer,
)
from spark_queue.spark.read.pacing import Stopwatch
from spark_queue.spark.read.proof import TaskProof, proving_input
from spark_queue.spark.read.queue_input import QueueInput
from spark_queue.spark.read.split import split_batch
from spark_queue.stores.support.waiting import wait_for_queues

log = logging.getLogger(__name__)

#: How often a process looks whether another one has died (s).
LOOK_INTERVAL = 0.25


class MultiInputPlanner:
    """Plans the batches of several inputs, as `Consumer` does for one queue."""

    def __init__(self, options: StreamOptions) -> None:
        assert options.inputs is not None
        self._options = options
        self._input_facts = {binding: one.checkpoint_fields for binding, one in options.inputs.items()}
        self.members: dict[str, QueueInput | LogInput] = {}
        self.queues: dict[str, QueueInput] = {}
        self._logs: dict[str, LogInput] = {}
        # The rows of all inputs together fit into memory. With `alts`, a batch has one input.
        share = MemoryLimit(options).batch_bytes(0)
        if share is not None and options.combine == ZIP:
            share = max(1, share // len(options.inputs))
        for binding in options.inputs:
            one = replace(options.for_input(binding), max_bytes_per_trigger=share)
            if one.reading.mode == LOG:
                self.members[binding] = self._logs[binding] = LogInput(one)
            else:
                self.members[binding] = self.queues[binding] = QueueInput(one)
        self._planned: MultiInputOffset | None = None
        self._asked: MultiInputOffset | None = None  # after which Spark asked for a batch last
        self._reserved: MultiInputOffset | None = None  # the batch that this process reserved last
        self.waiting = self._single_queue.waiting if self._single_queue else Stopwatch()
        self._bounded = False
        self._ordered = False  # whether it has waited for what others may give back

    @cached_property
    def initial(self) -> MultiInputOffset:
        """The offset at which a query with a new checkpoint begins."""
        consumer = new_consumer(self._options)
        found: MultiInputOffset = {"v": OFFSET_VERSION, "inputs": self._input_facts, "consumer": consumer, "seq": 0}
        if places := {binding: [log.initial_offset()] * 2 for binding, log in self._logs.items()}:
            found["places"] = places
        return found

    @property
    def planned(self) -> MultiInputOffset:
        """The end of the batch that was planned last."""
        return self._planned or self.initial

    @property
    def _single_queue(self) -> QueueInput | None:
        """The queue, if it is the only input: it is then read as without `inputs`."""
        return next(iter(self.queues.values()), None) if len(self.members) == 1 else None

    def next(self, start: MultiInputOffset, limit: int, *, prefetch: int = 0) -> MultiInputOffset:
        """Commit up to `start`, reserve the next batch; return its end, `start` if there is none.

        Raises `CheckpointError` if `start` is of other inputs, and as `Consumer.next`.
        """
        self._check_offset(start)
        self._asked = start
        offsets = input_offsets(start)
        if self._single_queue:
            ((binding, view),) = offsets.items()
            end = self._single_queue.next(view, limit, prefetch=prefetch)
            rows = {binding: end["rows"]} if end["seq"] > start["seq"] else {}
            arrived = end.get("arrived", 0)
        else:
            self.commit(start)
            for binding, queue in self.queues.items():
                queue.clean_up(offsets[binding])
            if self._options.combine == ZIP and not self._ordered:
                self._ordered = True
                self._wait_for_order(offsets)
            reserve = self._reserve_from_first if self._options.combine == ALTS else self._reserve_from_each
            rows = reserve(offsets, limit)
            arrived = next(iter(self.members.values())).next_arrival(start) if rows else 0
            for binding in rows:
                self.members[binding].mark_reserved(offsets[binding], rows[binding], arrived)
        for member in self.members.values():  # also those without messages in this batch
            member.active = bool(rows)
        if not rows:
            return start
        by = {binding: queue.number for binding, queue in self.queues.items()}
        end_offset: MultiInputOffset = {**start, "v": OFFSET_VERSION, "seq": start["seq"] + 1, "by": by, "rows": rows}
        end_offset["arrived"] = arrived
        if places := {binding: log.batch_places(sum(rows.get(binding, []))) for binding, log in self._logs.items()}:
            end_offset["places"] = places
        self._reserved = mark_delivery(end_offset, self._options)
        return self._reserved

    def _wait_for_order(self, offsets: Mapping[str, Offset]) -> None:
        """Wait until processes that died before their first batch are known to be dead.

        What they hold comes first in its queue. Without it, messages of other places would come
        together. Warns if living consumers hold messages, or failed ones are retried later.
        """
        timeout = max((one.store.limits.order_timeout for one in self.queues.values()), default=0.0)  # logs have none
        end, logged = time.monotonic() + timeout, False
        while time.monotonic() < end:
            undecided = {one.queue: one.look_for_abandoned(offsets[name]) for name, one in self.queues.items()}
            if not any(undecided.values()):
                break
            if not logged:
                logged = True
                log.info(
                    "waiting for up to %d s: another process holds messages of %s, and may have died before its "
                    "first batch",
                    timeout, ", ".join(queue for queue, rows in undecided.items() if rows),
                )  # fmt: skip
            time.sleep(LOOK_INTERVAL)
        missing = {one.queue: one.describe_missing(offsets[name]) for name, one in self.queues.items()}
        if any(missing.values()):
            log.warning(
                "earlier messages come later, so the n-th message of one input does not come with the n-th of the "
                "others: %s",
                "; ".join(f"{queue} ({text})" for queue, text in missing.items() if text),
            )

    def _reserve_from_each(self, offsets: Mapping[str, Offset], limit: int) -> dict[str, list[int]]:
        """Reserve the same number of messages of every input; none if an input has none."""
        if not self._wait(all):
            self._idle()
            return {}
        for member in self.members.values():
            limit = member.count_ready(limit)
        rows: dict[str, list[int]] = {}
        for binding, member in self.members.items():
            if limit:
                rows[binding] = member.claim(offsets[binding], max(limit, 1))
                limit = min(limit, sum(rows[binding]))
        kept = {binding: self.members[binding].trim(offsets[binding], held, limit) for binding, held in rows.items()}
        return kept if limit else {}

    def _reserve_from_first(self, offsets: Mapping[str, Offset], limit: int) -> dict[str, list[int]]:
        """Reserve messages of the first input that has some."""
        if not self._wait(any):
            self._idle()
            return {}
        for binding, member in self.members.items():
            rows = member.claim(offsets[binding], limit)
            if rows:
                return {binding: rows}
        return {}

    def _wait(self, enough: Callable[[Iterable[bool]], bool]) -> bool:
        """Wait until any or all inputs have a message; return whether they have."""
        if self._bounded:
            return True
        with self.waiting:
            awaited = [one.awaited() for one in self.members.values()]
            return wait_for_queues(awaited, self._options.wait_timeout, enough=enough)

    def plan(self, start: MultiInputOffset, end: MultiInputOffset) -> list[ZippedRange]:
        """Start and hold a batch in all queues, and return the rows of each task.

        Raises `CheckpointError` if an offset is of other inputs. Raises `FencedError` if a replayed
        batch lost messages and the delivery is exactly-once.
        """
        self._check_offset(start)
        self._check_offset(end)
        self._planned = end
        delivery = delivery_of(end)
        empty = ZippedRange(delivery, {})
        if end["seq"] == start["seq"]:
            return [] if end["seq"] else [empty]  # see `Consumer.plan`
        ends = input_offsets(end)
        bindings = [binding for binding, parts in end.get("rows", {}).items() if sum(parts)]
        replayed = self._reserved != end
        if replayed and len(bindings) > 1:
            for binding, queue in self.queues.items():
                queue.own(ends[binding])  # in all, so that none changes while it looks
            self._release_unread(ends, bindings)
        for binding, queue in self.queues.items():
            queue.start(ends[binding])  # in all queues, so that none of them accepts an older checkpoint
        if not is_dropped(end, self._options):
            check_deaths([(queue.batches(ends[binding]), ends[binding]) for binding, queue in self.queues.items()])
        held = {binding: self.members[binding].hold(ends[binding]) for binding in bindings}
        if self._single_queue:
            return [ZippedRange(delivery, {binding: [one]}) for binding in bindings for one in held[binding]]
        if not all(held.values()) or (replayed and not self._can_replay(ends, bindings)):
            return [empty]
        ranges = {binding: self.members[binding].ranges(ends[binding], replayed=replayed) for binding in bindings}
        return split_batch(delivery, ranges, self._options.min_partitions or 1) or [empty]

    def _release_unread(self, ends: Mapping[str, Offset], bindings: Sequence[str]) -> None:
        """Release a batch that no task has read, and that is not whole any more.

        It is not started in one of its queues: tasks read a batch after that. So no decision of a
        person is needed, as in `_can_replay`.
        """
        if all(queue.is_started(ends[binding]) for binding, queue in self.queues.items()):
            return
        if any(self.members[binding].lost_rows(ends[binding]) for binding in bindings):
            for binding in bindings:
                if binding in self.queues:  # a log reserves nothing
                    self.queues[binding].release_unread(ends[binding])

    def _can_replay(self, ends: Mapping[str, Offset], bindings: Sequence[str]) -> bool:
        """Return whether a replayed batch still holds all its messages.

        If some are missing, it is unknown which of the others belong together. Then all are
        released, and delivered again in other batches. If the delivery is exactly-once, you must
        decide that: raises `FencedError`.
        """
        lost = {binding: self.members[binding].lost_rows(ends[binding]) for binding in bindings}
        if len(bindings) == 1 or not any(lost.values()):
            return True
        rows = sum(ends[bindings[0]]["rows"])
        holding = [binding for binding in bindings if lost[binding] < rows]
        if not holding:
            return False
        tag = delivery_of(ends[bindings[0]])
        held = ", ".join(f"{rows - lost[binding]} of {rows} of {ends[binding]['queue']}" for binding in bindings)
        if self._options.guarantee.exactly_once:
            steps = [f"spark-queue recover URL {ends[b]['queue']} {ends[b]['consumer']} --sink URL" for b in holding]
            raise FencedError(
                f"batch {tag}: only {held} messages are still reserved, the others were released, or removed because "
                "the batch was written. Messages of several inputs belong together, so the batch cannot be repeated. "
                f"Settle the rest, then start the query again: {'; '.join(steps)}",
                tag=tag,
            )
        for binding in holding:
            if binding in self.queues:  # a log reserves nothing
                self.queues[binding].release(ends[binding])
        log.warning(
            "batch %s: only %s messages are still reserved, so the batch cannot be repeated: they are released, and "
            "delivered again in other batches",
            tag, held,
        )  # fmt: skip
        return False

    def commit(self, end: MultiInputOffset) -> None:
        """Remove the messages of the batch of `end`, unless that is done.

        Every input is checked first: if one refuses the checkpoint, no queue loses a message.
        Raises `CheckpointError` if the offset is of other inputs, and as `Consumer.commit`.
        """
        self._check_offset(end)
        offsets = input_offsets(end)
        unfinished = [one for one, member in self.members.items() if member.check(offsets[one])]
        if unfinished and (binding := proving_input(end)) is not None:

            def is_held() -> bool:
                return any(queue.holds(offsets[one]) for one, queue in self.queues.items())

            self.queues[binding].check_read(offsets[binding], self.rows(end, end), is_held)
        for binding in unfinished:
            self.members[binding].remove(offsets[binding])

    def begin_reading(self, end: MultiInputOffset, tasks: int) -> list[TaskProof | None]:
        """Return the proof of each task of a batch; one of the queues has the notes."""
        binding = proving_input(end)
        if binding is None:
            return [None] * tasks
        proofs = self.queues[binding].begin_reading(input_offsets(end)[binding], tasks)
        return [one and replace(one, binding=binding) for one in proofs]

    def rows(self, start: MultiInputOffset, end: MultiInputOffset) -> int:
        """Return the number of rows of the batch that ends at `end`."""
        return max((sum(parts) for parts in end.get("rows", {}).values()), default=0)

    @property
    def max_rows(self) -> int:
        """The maximum number of rows of a batch, by the limits of memory and of the database."""
        return min(member.max_rows for member in self.members.values())

    def stop_at_now(self) -> None:
        """Bound the run: reserve only messages that are due by now."""
        self._bounded = True
        for member in self.members.values():
            member.stop_at_now()

    def backlog(self) -> dict[str, Any]:
        """Return the last planned offset, and the sizes of each input."""
        # A restarted query has planned nothing yet, and may not find its initial offset any more.
        planned = self._planned or self._asked or self.initial
        progress = {key: value for key, value in planned.items() if key in ("v", "consumer", "seq")}
        own = (*progress, "reader", "places")
        inputs = {
            binding: self._input_facts[binding] | {k: v for k, v in one.backlog().items() if k not in own}
            for binding, one in self.members.items()
        }
        return progress | {"inputs": inputs}

    @property
    def has_prefetched(self) -> bool:
        """Whether `close` has a prefetched batch to release."""
        return any(queue.has_prefetched for queue in self.queues.values())

    @property
    def works(self) -> bool:
        """Whether tasks may work on a batch of this process."""
        return any(queue.works for queue in self.queues.values())

    def leave(self) -> None:
        """Note that this process ends in order: see `Batches.leave`."""
        for queue in self.queues.values():
            queue.leave()

    def close(self) -> None:
        """Close all inputs; see `Consumer.close`."""
        for queue in self.queues.values():
            queue.announce_exit()  # all of them first: closing one may take time
        for member in self.members.values():
            member.close()

    def _idle(self) -> None:
        for member in self.members.values():
            member.on_idle()

    def _check_offset(self, offset: MultiInputOffset) -> None:
        """Raise `CheckpointError` if an offset of Spark is of other inputs."""
        inputs = self._input_facts
        # An input refuses an unknown version.
        if offset.get("v") not in READABLE_VERSIONS or offset.get("inputs") == inputs:
            return
        stored: Mapping[str, Mapping[str, Any]] = offset.get("inputs") or {"queue": {"queue": offset.get("queue")}}
        raise CheckpointError(
            f"the checkpoint is that of a query on {_describe_inputs(stored)}, but option 'inputs' has "
            f"{_describe_inputs(inputs)}: a query keeps its inputs, by binding and queue, in any order; others need "
            "a new checkpoint",
            inputs=inputs,
        )


def _describe_inputs(inputs: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{binding}: {'/'.join(str(one[name]) for name in ('ns', 'queue') if name in one)}"
        for binding, one in inputs.items()
    )
