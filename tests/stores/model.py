"""A model of the contract of a store, in memory: queues, stages, notes, and each operation.

It has no database and no clock: the caller passes the time of the database. The contract allows
several results in some cases: a time lies between two others, or the messages of an ended lease may
be free. Then the model has all allowed results, and `agree` adopts the result of the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spark_queue.stores.base import partition_sizes
from spark_queue.stores.types import Note, Sizes, Staged, is_unseen, unseen_tag

#: A moment in ms; as a pair, one that is only known to lie between two others.
Moment = int | tuple[int, int]


@dataclass
class Item:
    """A message. `tag` holds it until `until`, `None` for ever."""

    id: str
    payload: Any
    headers: dict[str, str]
    tries: int
    due: Moment
    tag: str | None = None
    until: Moment | None = None
    loose: bool = False  #: its lease has ended, and somebody has looked for messages to take since
    rivals: list[Item] = field(default_factory=list)  #: published with it; any of them may be the message
    pushed: Moment | None = None  #: when it was pushed or staged; nothing changes it
    place: int | None = field(default=None, compare=False)  #: among those of the same due time

    def under(self, tree: str) -> bool:
        """Whether the tag or one below it holds the message."""
        return self.tag is not None and (self.tag == tree or self.tag.startswith(f"{tree}/"))

    def ended(self, now: int) -> bool:
        """Whether its lease has ended, and it is still held: until another tag takes it."""
        return self.tag is not None and self.until is not None and known(self.until) <= now

    def lasting(self, now: int) -> bool:
        """Whether it is held under a lease that lasts."""
        return self.tag is not None and not self.ended(now)

    def failures(self, now: int) -> int:
        """Return its tries for the consumer that reserves it next."""
        return self.tries + (self.ended(now) and not self.unseen)

    @property
    def unseen(self) -> bool:
        """Whether it is reserved ahead: the end of its lease is no failure."""
        return self.tag is not None and is_unseen(self.tag)


@dataclass(frozen=True)
class Order:
    """In what order a store gives messages.

    Messages of the same due time are in the order of their pushes. `by_end`: a message whose lease
    ended takes its place by that end; `staged`: a message that was staged has the place of then,
    not of its publish; `seen`: pushes are in order only among free messages of the same queue, so
    the places are those that a look at the store shows.
    """

    by_end: bool = False
    staged: bool = False
    seen: bool = False

    def due(self, item: Item) -> tuple[int, int]:
        """The place of a message among all, or among those of its tag."""
        return known(item.due), item.place or 0

    def free(self, item: Item, now: int) -> tuple[int, int]:
        """The place of a message among those that may be taken."""
        moment = item.until if self.by_end and item.ended(now) else item.due
        return known(moment or 0), item.place or 0


@dataclass
class Model:
    """Queues, stages and notes.

    `now` is the time of the database when an operation begins. The test sets it.
    """

    order: Order
    now: int = 0
    queues: dict[str, dict[str, Item]] = field(default_factory=dict)
    history: dict[str, dict[str, bool]] = field(default_factory=dict)  #: id -> whether it is there for certain
    stages: dict[str, list[tuple[str, Item]]] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    places: int = 0  #: how many were given away

    def placed(self, item: Item) -> Item:
        """The message with the next place, unless it has one."""
        self.places += 1
        return replace(item, place=self.places if item.place is None else item.place)

    def queue(self, name: str) -> dict[str, Item]:
        return self.queues.setdefault(name, {})

    # --- messages in ------------------------------------------------------------------------------

    def push(self, queue: str, items: Iterable[Item]) -> int:
        """An id that is there already is left as it is."""
        there, pushed = self.queue(queue), 0
        for item in items:
            if item.id not in there:
                there[item.id] = self.placed(item)
                pushed += 1
                if item.id in self.history.get(queue, {}):  # a store may keep one message of an id
                    self.history[queue][item.id] = False
        return pushed

    def stage(self, queue: str, stage: str, items: Sequence[Item]) -> int:
        staged = [self.placed(item) for item in items] if self.order.staged else items
        self.stages.setdefault(stage, []).extend((queue, item) for item in staged)
        return len(items)

    def publish(self, stages: Sequence[str]) -> int:
        """Of one stage the first of an id counts; which of several stages comes first is open."""
        published: dict[tuple[str, str], list[Item]] = {}
        for stage in stages:
            first: dict[tuple[str, str], Item] = {}
            for queue, item in self.stages.pop(stage, ()):
                first.setdefault((queue, item.id), item)
            for key, item in first.items():
                published.setdefault(key, []).append(self.placed(item))
        return sum(self.push(queue, [replace(one, rivals=rest)]) for (queue, _), (one, *rest) in published.items())

    def unstage(self, stage: str, keep: Sequence[str]) -> int:
        gone = [one for one in self.stages if (one == stage or one.startswith(f"{stage}/")) and one not in keep]
        return sum(len(self.stages.pop(one)) for one in gone)

    def staged(self) -> list[Staged]:
        counts: dict[tuple[str, str], int] = {}
        for stage, held in self.stages.items():
            for queue, _ in held:
                counts[stage, queue] = counts.get((stage, queue), 0) + 1
        return [Staged(stage, queue, rows) for (stage, queue), rows in sorted(counts.items())]

    # --- reservations -----------------------------------------------------------------------------

    def held(self, queue: str, tree: str, ids: Sequence[str] | None = None) -> list[Item]:
        """What a tag and those below it hold, late or not, in order."""
        held = [one for one in self.queue(queue).values() if one.under(tree) and (ids is None or one.id in ids)]
        return sorted(held, key=self.order.due)

    def free(self, queue: str) -> list[Item]:
        """What nobody holds under a lease that lasts, scheduled messages too, in order."""
        free = [one for one in self.queue(queue).values() if not one.lasting(self.now)]
        return sorted(free, key=lambda one: self.order.free(one, self.now))

    def reserve(
        self,
        queue: str,
        tag: str,
        limit: int,
        partitions: int,
        until: Moment | None,
        before: int,
        unseen: bool = False,
    ) -> list[int]:
        """A tag that holds something takes no more; else the first in order are shared out."""
        tags = [unseen_tag(tag) if unseen else f"{tag}/{partition}" for partition in range(partitions)]
        holding = {one.tag for one in self.held(queue, tags[0] if partitions == 1 else tag)}
        if holding and unseen:
            return [len(self.held(queue, tags[0]))]
        if holding:
            last = max(int(name.rpartition("/")[2]) for name in holding if name)
            rows = [len(self.held(queue, f"{tag}/{number}")) for number in range(last + 1)]
            return rows[:1] if partitions == 1 else rows
        ready = [one for one in self.free(queue) if self.order.free(one, self.now)[0] <= min(self.now, before)]
        rows = partition_sizes(min(limit, len(ready)), partitions)
        self.shake(queue)
        taken = iter(ready)
        for name, share in zip(tags, rows, strict=False):
            for _ in range(share):
                item = next(taken)
                item.tries = item.failures(self.now)
                item.tag, item.until, item.loose = name, until, False
        return rows

    def shake(self, queue: str) -> None:
        """Somebody looks for messages to take: a store may free now what an ended lease holds."""
        for item in self.queue(queue).values():
            item.loose = item.ended(self.now)

    def renew(self, queue: str, tree: str, until: Moment | None) -> int:
        held = self.held(queue, tree)
        for item in held:
            item.until = until
        return len(held)

    def commit(self, queue: str, tree: str, ids: Sequence[str] | None, history: bool) -> int:
        held = self.held(queue, tree, ids)
        for item in held:
            del self.queue(queue)[item.id]
            if history:
                self.history.setdefault(queue, {})[item.id] = True
        return len(held)

    def rollback(self, queue: str, tree: str, ids: Sequence[str] | None, due: Moment | None, failed: bool) -> int:
        held = self.held(queue, tree, ids)
        for item in held:
            item.tries += failed
            item.due, item.tag, item.until = item.due if due is None else due, None, None
        return len(held)

    def transfer(self, queue: str, tree: str, to: str, ids: Sequence[str] | None, until: Moment | None) -> int:
        held = [one for one in self.held(queue, tree, ids) if one.tag != to]
        for item in held:
            item.tag, item.until = to, until
        return len(held)

    # --- between queues, and out ------------------------------------------------------------------

    def move(
        self,
        queue: str,
        to: str,
        tag: str | None,
        ids: Sequence[str] | None,
        limit: int | None,
        min_tries: int,
        death: dict[str, str] | None,
        failed: int,
        history: bool = False,
    ) -> int:
        """`death`: the headers that do not depend on the message."""
        if tag is None:
            tries = {one.id: one.failures(self.now) for one in self.queue(queue).values()}
            found = [one for one in self.free(queue) if ids is None or one.id in ids]
            self.shake(queue)
        else:
            found = self.held(queue, tag, ids)
            tries = {one.id: one.tries for one in found}
        found = [one for one in found if tries[one.id] >= min_tries][:limit]
        for item in found:
            del self.queue(queue)[item.id]
            if history:
                self.history.setdefault(queue, {})[item.id] = True
            reasons = {} if death is None else death | {"x-dl-tries": str(tries[item.id] + failed)}
            kept = Item(
                item.id, item.payload, item.headers | reasons, 0, item.due, pushed=item.pushed, place=item.place
            )
            self.push(to, [kept])
        return len(found)

    def purge(self, queue: str, ids: Sequence[str] | None = None) -> int:
        free = [one for one in self.free(queue) if ids is None or one.id in ids]
        self.shake(queue)
        for item in free:
            del self.queue(queue)[item.id]
        return len(free)

    def drop(self, queue: str) -> None:
        """A note about a queue, here of the same name, goes with it."""
        self.queues.pop(queue, None)
        self.history.pop(queue, None)
        self.notes.pop(queue, None)

    # --- notes ------------------------------------------------------------------------------------

    def set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool:
        found = self.notes.get(key)
        if (found.version if found else 0) == version:
            if value is None:
                self.notes.pop(key, None)
            else:
                self.notes[key] = Note(value, version + 1)
            return True
        return False

    # --- looking ----------------------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        items = self.queue(queue).values()
        reserved = sum(one.lasting(self.now) for one in items)
        scheduled = sum(one.tag is None and known(one.due) > self.now for one in items)
        return Sizes(len(items) - reserved - scheduled, scheduled, reserved)

    def agree(self, queue: str, seen: dict[str, Item]) -> None:
        """Assert that the queue holds just the messages seen, and take over what was open."""
        there = self.queue(queue)
        assert set(seen) == set(there), f"lost: {set(there) - set(seen)}, too many: {set(seen) - set(there)}"
        for id, found in seen.items():
            rivals, there[id].rivals = there[id].rivals, []
            item = there[id] = next((one for one in rivals if one.payload == found.payload), there[id])
            if item.loose and found.tag is None:
                item.tries, item.tag, item.until = item.tries + (not item.unseen), None, None
            item.loose = False
            item.due = known(settled(item.due, found.due))
            item.until = settled(item.until, found.until)
            item.pushed = settled(item.pushed, found.pushed)
            assert found == item


def known(moment: Moment | None) -> int:
    """A moment that `agree` has seen."""
    assert isinstance(moment, int)
    return moment


def settled(moment: Moment | None, seen: Moment | None) -> Moment | None:
    """The moment as it was seen, if it may be that."""
    if isinstance(moment, tuple):
        assert seen is not None and moment[0] <= known(seen) <= moment[1], f"{seen} is not between {moment}"
        return seen
    return moment
