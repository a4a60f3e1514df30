"""Names in Redis: the keys of queues, stages and notes, and the members of `held`.

A member of `held` is a *run*: a tag, a due time, and the ids of messages that are due then, with
the parts of a ms that their scores had. See `lua/common.lua`.
"""

from __future__ import annotations

from typing import NamedTuple

DueId = tuple[float, bytes]  #: when a message is due (ms) and its id; within a queue, its score for the former

#: Into how many parts a ms is divided: a score, which is a double, has room for them until 2248.
PARTS = 1024

#: The byte before a number of parts in a run.
PART_MARK = 0xFF

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


def single_run(tag: str | bytes, due: float, id: str | bytes) -> bytes:
    """Return a message as a run of one message. `due`: its score, ms with parts."""
    tag, id = (one.encode() if isinstance(one, str) else one for one in (tag, id))
    moment = int(due)
    parts = int((due - moment) * PARTS)
    return b"%b\0%015d\0%b%b" % (tag, moment, b"\xff%04d\0" % parts if parts > 0 else b"", id)


def ids_of(run: bytes) -> list[bytes]:
    """Return the ids of the messages of a run."""
    ids = run.split(b"\0")[2:]
    return [id for id in ids if not (id[0] == PART_MARK and _is_mark(id))] if PART_MARK in run else ids


def messages_of(run: bytes) -> list[tuple[bytes, float, bytes]]:
    """Return the messages of a run: tag, score (ms with parts) and id of each."""
    tag, due, *ids = run.split(b"\0")
    moment = int(due)
    if PART_MARK not in run:
        return [(tag, moment, id) for id in ids]
    found: list[tuple[bytes, float, bytes]] = []
    score: float = moment
    for id in ids:
        if id[0] == PART_MARK and _is_mark(id):
            score = moment + int(id[1:]) / PARTS
        else:
            found.append((tag, score, id))
    return found


def _is_mark(text: bytes) -> bool:
    """Return whether this text, which begins as a mark, is one. The store renames such ids."""
    return len(text) == 5 and text[1:].isdigit()


def due_and_id(member: bytes) -> DueId:
    """Return the score of a run and its ids as one text: the sort key of runs."""
    at = member.index(b"\0")
    return int(member[at + 1 : at + 16]), member[at + 17 :]  # the text begins with the parts, if there are any
