"""How things are named in Redis: the keys of queues, stages and notes, and the members that name what is held.

A member of `held` is a *run*: a tag, a moment, and the ids of messages that are due then. `lua/common.lua` tells all.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_queue.stores.redis.documents import DueId

USUAL = "redis-oq"  #: the layout of a URL that names none


class Keys(NamedTuple):
    """The keys of a queue, as the scripts number them."""

    moments: str  # keuss' index
    hash: str
    held: str
    leases: str
    history: str
    processed: str
    buckets: str


def own(layout: str) -> str:
    """How the keys begin that are ours, in a layout."""
    return "spark_queue" if layout == USUAL else f"spark_queue.{layout}"


def keys_of(queue: str, layout: str = USUAL) -> Keys:
    """The keys of a queue. Nothing else is ever touched for its messages, once they are published."""
    names = {name: f"{own(layout)}:{queue}:{name}" for name in Keys._fields}
    if layout == USUAL:
        names["moments"] = f"keuss:q:ordered_queue:index:{queue}"
        names["hash"] = f"keuss:q:ordered_queue:hash:{queue}"
    return Keys(**names)


class Chunk(NamedTuple):
    """Messages of a stage that are published in one step. Those of a stage sort as they were staged.

    `part` ends with the number of messages.
    """

    stage: str
    part: str
    queue: str
    layout: str = USUAL

    @classmethod
    def of(cls, member: bytes, layout: str) -> Chunk:
        """The chunk of a member of a registry."""
        name, queue = member.decode().split("\0")
        stage, _, part = name.rpartition("/")
        return cls(stage, part, queue, layout)

    @property
    def member(self) -> str:
        """What the registry has for it."""
        return f"{self.stage}/{self.part}\0{self.queue}"

    @property
    def key(self) -> str:
        """Where its messages lie. No other call of `stage` makes this key, whatever its queue and stage."""
        return f"{own(self.layout)}:{self.queue}:staged:{self.stage}/{self.part}"

    @property
    def rows(self) -> int:
        """How many messages it was made with."""
        return int(self.part.rpartition(".")[2])

    def within(self, stage: str) -> bool:
        """Whether it is of this stage or of one below it; of any stage, where that is empty."""
        return not stage or f"{self.stage}/".startswith(f"{stage}/")


# No queue has keys that begin like these two: its name may be any.


def registry_of(stage: str, layout: str = USUAL) -> str:
    """The key of the registry that the sink of a stage has."""
    return f"{own(layout)}.sink:{stage.partition('/')[0]}"


def note_key(key: str, layout: str = USUAL) -> str:
    """The key of a note."""
    return f"{own(layout)}.note:{key}"


# --- runs -----------------------------------------------------------------------------------------------------------


def member_of(tag: str | bytes, due: int, id: str | bytes) -> bytes:
    """A message as a run of its own."""
    tag, id = (one.encode() if isinstance(one, str) else one for one in (tag, id))
    return b"%b\0%015d\0%b" % (tag, due, id)


def ids_of(run: bytes) -> list[bytes]:
    """The ids of the messages that a run names."""
    return run.split(b"\0")[2:]


def messages_of(run: bytes) -> list[tuple[bytes, int, bytes]]:
    """The messages that a run names: tag, due and id of each."""
    tag, due, *ids = run.split(b"\0")
    moment = int(due)
    return [(tag, moment, id) for id in ids]


def due_and_id(member: bytes) -> DueId:
    """When a run is due, and the ids of its messages: by this runs of several tags are put in order."""
    at = member.index(b"\0")
    return int(member[at + 1 : at + 16]), member[at + 17 :]
