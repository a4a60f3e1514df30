"""Links: each message of a queue moves on, to one of its destinations, in one step of the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from spark_queue.graph.parts import (
    FORBID,
    AtPlace,
    ConsumerSettings,
    Entries,
    Every,
    Expression,
    Function,
    Path,
    inside,
    listed,
)
from spark_queue.graph.step import NamedQueue, OneSource, Outline
from spark_queue.options.values import EXACTLY_ONCE


@dataclass(frozen=True)
class Moves:
    """What a link changes of a message, by expressions: as `Changes`, and when it can be reserved there."""

    __pydantic_config__ = FORBID

    payload: Expression | None = None
    headers: Entries = field(default_factory=dict)
    mature: Expression | None = None
    delay: Expression | None = None
    tries: Expression | None = None


@dataclass(frozen=True)
class Retry:
    """After how many seconds a message that failed comes again: `base`, and `factor` for each failure before."""

    __pydantic_config__ = FORBID

    base: Annotated[float, Field(ge=0)] = 1.0
    factor: Annotated[float, Field(ge=0)] = 2.0


@dataclass(frozen=True)
class Link(OneSource):
    """From a queue to one of others that lie in the same collection of MongoDB (`layout=pl-mongo`), or to none.

    A message is changed and moved in one step of the database, so it is in one of the queues at every moment, and
    goes on exactly once whatever dies. Without destination it is done when it is worked on; with several, `to` names
    the queue, or gives its number from 0. What becomes of a message is decided by expressions, `drop` (true: it ends
    here), `to` and `set`, or by `process`, a function of Python (see `graph/link_function.py`). One that fails comes
    again, after `retry`, until the option `maxTries` ends that. `every`, `consumer`, `options`: as of an exchange.
    """

    __pydantic_config__ = FORBID

    section: ClassVar[str] = "links"
    noun: ClassVar[str] = "link"
    runner: ClassVar[str] = "spark_queue.runner.link:LinkStep"
    guarantee: ClassVar[str] = EXACTLY_ONCE  # by construction
    outline: ClassVar[Outline] = Outline("hexagon", "#ffe9c7", "filled", "{{", "}}")

    src: AtPlace
    dst: Annotated[list[AtPlace], BeforeValidator(listed)] = field(default_factory=list)
    process: Function = None
    drop: Expression | None = None
    to: Expression | None = None
    set: Moves = field(default_factory=Moves)
    retry: Retry = field(default_factory=Retry)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    every: Every = 0
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def named(cls, raw: Any) -> Iterator[NamedQueue]:
        """Yield its source and its destinations, of which one may stand alone."""
        to = inside(raw, "dst")
        return super().named({"src": inside(raw, "src"), "dst": listed(to) if to else []})

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        """Yield settings that say the same twice, or nothing, and destinations where it cannot move messages."""
        decided = {"to": self.to, "drop": self.drop, "set": None if self.set == Moves() else self.set}
        for key, value in decided.items():
            if value is not None and self.process is not None:
                yield (key,), "give either this or `process`: its function decides this"
        if len(self.dst) < 2 and self.to is not None:
            yield ("to",), "it chooses a destination, and the link has fewer than two: leave it out"
        if len(self.dst) > 1 and self.to is None and self.process is None:
            yield (), "'to' is missing: it chooses among several destinations"
        if not self.dst and self.set != Moves():
            yield ("set",), "the link has no destination, so it changes nothing: leave this out"
        if self.set.mature is not None and self.set.delay is not None:
            yield ("set", "delay"), "give either mature or delay, not both"
        for number, to in enumerate(self.dst):
            if to.ns and self.src.ns and to.ns != self.src.ns:
                yield (
                    ("dst", number),
                    "a link stays within one namespace: use an exchange to copy messages to another",
                )
            if to.queue == self.src.queue:
                yield ("dst", number), "this is the source of the link: name another queue"
        if not self.consumer.reserve:
            yield ("consumer", "reserve"), "a link needs reservations: leave this out"
