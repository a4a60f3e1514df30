"""Names in Redis: the keys of queues, stages and notes, and the members of `held`.

A member of `held` is a *run*: a tag, a due time, and the ids of messages that are due then. See
`lua/common.lua`.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_queue.stores.redis.documents import DueId

DEFAULT_LAYOUT = "redis-oq"  #: the layout of a URL without `layout=`


class Keys(NamedTuple):
    """The keys of a queue, as the scripts number them."""

    moments: str  # keuss' index
    hash: str
    held: str
    leases: str
    history: str
    processed: str
    buckets: str


def key_prefix(layout: str) -> str:
    """Return the prefix of our own keys in a layout."""
    return "spark_queue" if layout == DEFAULT_LAYOUT else f"spark_queue.{layout}"


def queue_keys(queue: str, layout: str = DEFAULT_LAYOUT) -> Keys:
    """Return the keys of a queue. A layout with lists has more keys: see `lists.py`."""
    names = {name: f"{key_prefix(layout)}:{queue}:{name}" for name in Keys._fields}
    if layout == DEFAULT_LAYOUT:
        names["moments"] = f"keuss:q:ordered_queue:index:{queue}"
        names["hash"] = f"keuss:q:ordered_queue:hash:{queue}"
    return Keys(**names)


class Chunk(NamedTuple):
    """Messages of a stage that are published in one step.

    The chunks of a stage sort in the order in which they were staged. `part` ends with the number
    of messages.
    """

    stage: str
    part: str
    queue: str
    layout: str = DEFAULT_LAYOUT

    @classmethod
    def from_member(cls, member: bytes, layout: str) -> Chunk:
        """Return the chunk of a registry's member."""
        name, queue = member.decode().split("\0")
        stage, _, part = name.rpartition("/")
        return cls(stage, part, queue, layout)

    @property
    def member(self) -> str:
        """Its member in the registry."""
        return f"{self.stage}/{self.part}\0{self.queue}"

    @property
    def key(self) -> str:
        """The key of its messages. No other call of `stage` creates the same key."""
        return f"{key_prefix(self.layout)}:{self.queue}:staged:{self.stage}/{self.part}"

    @property
    def rows(self) -> int:
        """The number of messages that it was created with."""
        return int(self.part.rpartition(".")[2])

    def belongs_to(self, stage: str) -> bool:
        """Return whether it belongs to a stage or to one below it. An empty stage means any."""
        return not stage or f"{self.stage}/".startswith(f"{stage}/")


# A queue may have any name: no key of a queue begins like these two.


def registry_key(stage: str, layout: str = DEFAULT_LAYOUT) -> str:
    """Return the key of the registry of a stage's sink."""
    return f"{key_prefix(layout)}.sink:{stage.partition('/')[0]}"


def note_key(key: str, layout: str = DEFAULT_LAYOUT) -> str:
    """Return the key of a note."""
    return f"{key_prefix(layout)}.note:{key}"


# --- runs -----------------------------------------------------------------------------------------


def single_run(tag: str | bytes, due: int, id: str | bytes) -> bytes:
    """Return a message as a run of one message. `due`: ms."""
    tag, id = (one.encode() if isinstance(one, str) else one for one in (tag, id))
    return b"%b\0%015d\0%b" % (tag, due, id)


def ids_of(run: bytes) -> list[bytes]:
    """Return the ids of the messages of a run."""
    return run.split(b"\0")[2:]


def messages_of(run: bytes) -> list[tuple[bytes, int, bytes]]:
    """Return the messages of a run: tag, due time (ms) and id of each."""
    tag, due, *ids = run.split(b"\0")
    moment = int(due)
    return [(tag, moment, id) for id in ids]


def due_and_id(member: bytes) -> DueId:
    """Return the due time (ms) of a run and its ids as one text: the sort key of runs."""
    at = member.index(b"\0")
    return int(member[at + 1 : at + 16]), member[at + 17 :]
