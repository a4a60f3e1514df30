"""What a summary reads about many queues at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_queue.stores.types import RawNote, Sizes


class SummaryOf(NamedTuple):
    """A queue, and what is read with it.

    `beside`: another queue whose sizes are read, its dead-letter queue. `note`: the key of a note.
    Empty for none.
    """

    queue: str
    beside: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """The queues of a summary, and up to how many messages of a state it counts: see `sizes`."""

    of: tuple[SummaryOf, ...]
    limit: int | None = None

    @property
    def queues(self) -> list[str]:
        """The queues."""
        return [one.queue for one in self.of]

    @property
    def places(self) -> list[str]:
        """All queues whose sizes are read."""
        return list(dict.fromkeys([*self.queues, *(one.beside for one in self.of if one.beside)]))

    @property
    def notes(self) -> list[str]:
        """The keys of the notes that are read."""
        return [one.note for one in self.of if one.note]

    def parts(self, size: int) -> Iterator[SummaryRequest]:
        """Yield the request in parts of `size` queues."""
        for start in range(0, len(self.of), size):
            yield SummaryRequest(self.of[start : start + size], self.limit)


@dataclass(frozen=True, slots=True)
class Summary:
    """The sizes of queues, whether each registered queue is paused, and the notes that exist.

    Queues whose name data of another program has are left out.
    """

    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    paused: Mapping[str, bool] = field(default_factory=dict)
    notes: Mapping[str, RawNote] = field(default_factory=dict)

    def __or__(self, other: Summary) -> Summary:
        return Summary({**self.sizes, **other.sizes}, {**self.paused, **other.paused}, {**self.notes, **other.notes})
