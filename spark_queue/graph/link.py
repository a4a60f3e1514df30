"""Links: steps that move each message to one of their destinations, atomically."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from spark_queue.graph.parts import (
    DECLARATION_CONFIG,
    ConsumerSettings,
    Expression,
    ExpressionsByName,
    FieldPath,
    Function,
    IntervalMs,
    PlaceOrText,
    as_list,
    get_field,
)
from spark_queue.graph.step import Outline, QueueReference, SingleSourceStep
from spark_queue.options.values import EXACTLY_ONCE


@dataclass(frozen=True)
class LinkChanges:
    """Expressions for the new values of a message, and for when it can be reserved."""

    __pydantic_config__ = DECLARATION_CONFIG

    payload: Expression | None = None
    headers: ExpressionsByName = field(default_factory=dict)
    mature: Expression | None = None
    delay: Expression | None = None
    tries: Expression | None = None


@dataclass(frozen=True)
class Retry:
    """The delay of a retry in seconds: `base`, plus `factor` for each failure before this one."""

    __pydantic_config__ = DECLARATION_CONFIG

    base: Annotated[float, Field(ge=0)] = 1.0
    factor: Annotated[float, Field(ge=0)] = 2.0


@dataclass(frozen=True)
class Link(SingleSourceStep):
    """A step that moves each message of a queue to one of others, or ends it.

    All its queues are in one collection of MongoDB (`layout=pl-mongo`). A message is changed and
    moved in one atomic step of the database. So it is in exactly one of the queues at every moment,
    and moves exactly once, even if a process is killed. Without a destination, a message is
    committed after it was processed. With several, `to` is the name of the queue, or its number
    from 0.

    Either expressions decide about a message, or a function. The expressions are `drop` (true: the
    message ends here), `to` and `set`. `process` is a Python function (see
    `graph/link_function.py`). A message that fails is retried after the delay of `retry`, until the
    option `maxTries` ends that. `every`, `consumer`, `options`, `disable`: as in an exchange.
    """

    __pydantic_config__ = DECLARATION_CONFIG

    section: ClassVar[str] = "links"
    noun: ClassVar[str] = "link"
    runner: ClassVar[str] = "spark_queue.runner.link:LinkStep"
    guarantee: ClassVar[str] = EXACTLY_ONCE  # by construction
    outline: ClassVar[Outline] = Outline("hexagon", "#ffe9c7", "filled")

    src: PlaceOrText
    dst: Annotated[list[PlaceOrText], BeforeValidator(as_list)] = field(default_factory=list)
    process: Function = None
    drop: Expression | None = None
    to: Expression | None = None
    set: LinkChanges = field(default_factory=LinkChanges)
    retry: Retry = field(default_factory=Retry)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    every: IntervalMs = 0
    options: dict[str, str] = field(default_factory=dict)
    disable: bool = False

    @classmethod
    def queue_references(cls, raw: Any) -> Iterator[QueueReference]:
        """Yield its source and its destinations; a single destination needs no list."""
        to = get_field(raw, "dst")
        return super().queue_references({"src": get_field(raw, "src"), "dst": as_list(to) if to else []})

    def contradictions(self) -> Iterator[tuple[FieldPath, str]]:
        """Yield settings that exclude each other or have no effect, and invalid destinations."""
        decided = {"to": self.to, "drop": self.drop, "set": None if self.set == LinkChanges() else self.set}
        for key, value in decided.items():
            if value is not None and self.process is not None:
                yield (key,), "give either this or `process`: its function decides this"
        if len(self.dst) < 2 and self.to is not None:
            yield ("to",), "it chooses a destination, and the link has fewer than two: leave it out"
        if len(self.dst) > 1 and self.to is None and self.process is None:
            yield (), "'to' is missing: it chooses among several destinations"
        if not self.dst and self.set != LinkChanges():
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
