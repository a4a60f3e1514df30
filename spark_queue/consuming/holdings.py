"""Which messages a client holds, and under which tags."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable, Iterator


class Holdings:
    """The messages that one client holds in this process.

    A process that was forked begins with nothing, and with tags of its own: what its parent holds
    stays the parent's.
    """

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._branch = f"{self._consumer}/{uuid.uuid4().hex[:6]}"
        self._sequence = itertools.count(1)
        self._tags: dict[str, str] = {}  # message id -> the tag that holds it
        self._complete: dict[str, int] = {}  # tag -> number of its messages, if all of them are in `_tags`

    def _own(self) -> Holdings:
        if self._pid != os.getpid():
            self._begin()
        return self

    @property
    def branch(self) -> str:
        """The tag above all tags of this process."""
        return self._own()._branch

    def new_tag(self) -> str:
        """Return a tag that was never used."""
        return f"{self.branch}/{next(self._sequence)}"

    def add(self, tag: str, ids: Iterable[str], *, complete: bool = False) -> None:
        """Note that a tag holds these messages; `complete`: and no others."""
        held = dict.fromkeys(ids, tag)
        self._own()._tags.update(held)
        if complete:
            self._complete[tag] = len(held)

    def discard(self, id: str) -> None:
        """Forget a message."""
        self._own()._tags.pop(id, None)

    def clear(self) -> bool:
        """Forget all messages; return whether there were any."""
        found = bool(self._own()._tags)
        self._tags.clear()
        self._complete.clear()
        return found

    def tags_of(self, ids: Iterable[str]) -> list[str]:
        """Return the tags that hold these messages."""
        held = self._own()._tags
        return list(dict.fromkeys(held[id] for id in ids if id in held))

    def settle(self, ids: Iterable[str]) -> Iterator[tuple[str, list[str], bool]]:
        """Yield held messages by tag: the tag, their ids, and whether these are all that it holds.

        They are forgotten when the caller asks for the next tag, so an error in between keeps them.
        """
        by_tag: dict[str, list[str]] = {}
        held = self._own()._tags
        for id in dict.fromkeys(ids):
            if id in held:
                by_tag.setdefault(held[id], []).append(id)
        for tag, some in by_tag.items():
            left = self._complete.get(tag)
            yield tag, some, left == len(some)
            for id in some:
                held.pop(id, None)
            if left is not None:
                self._complete[tag] = left - len(some)
                if left == len(some):
                    del self._complete[tag]
