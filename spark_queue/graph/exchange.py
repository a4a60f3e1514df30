"""Exchanges: steps that copy each message of a queue to the destinations whose selector is true."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from spark_queue.graph.parts import (
    DECLARATION_CONFIG,
    ConsumerSettings,
    Delivery,
    Expression,
    ExpressionsByName,
    FieldPath,
    IntervalMs,
    Place,
    PlaceOrText,
    parse_place,
)
from spark_queue.graph.selector_words import selector_text
from spark_queue.graph.step import Edge, SingleSourceStep
from spark_queue.options.values import AT_MOST_ONCE, EXACTLY_ONCE

#: The queues for messages that an exchange cannot route, in the namespace of its source.
NO_ROUTE, TOO_MANY_HOPS = "__no_route__", "__too_many_hops__"


@dataclass(frozen=True)
class Changes:
    """The changes of a message for one destination, which the destinations after it see too.

    `payload` becomes the value of an expression. In `headers` and `state`, other entries stay, and
    an entry whose expression is NULL is removed. The values there are text; that of a struct, a map
    or an array is JSON text.
    """

    __pydantic_config__ = DECLARATION_CONFIG

    payload: Expression | None = None
    headers: ExpressionsByName = field(default_factory=dict)
    state: ExpressionsByName = field(default_factory=dict)


@dataclass(frozen=True)
class Destination:
    """A queue, and the selector of the messages that are copied there (default: all).

    A message is copied if the selector is true, or a struct of `mature`, `delay`, `tries` for the
    copy; `mature` wins over `delay`, and other fields are ignored. `apply`: whether the changes of
    `set` are made only to messages that are `taken`, or `always`, for the destinations after it.
    """

    __pydantic_config__ = DECLARATION_CONFIG

    queue: Annotated[str, Field(min_length=1)]
    selector: Expression | None = None
    set: Changes = field(default_factory=Changes)
    ns: str = ""
    apply: Literal["taken", "always"] = "taken"

    @property
    def place(self) -> Place:
        """The queue in its namespace."""
        return Place(self.queue, self.ns)

    def __str__(self) -> str:
        return str(self.place)


@dataclass(frozen=True)
class Exchange(SingleSourceStep):
    """A step that copies messages from one queue to any number of others.

    `delivery`: by default exactly once, or at most once if `consumer.reserve` is false. `every`:
    the ms from the start of a batch to the start of the next; 0: as soon as there are messages.
    `options`: options of `format("queue")` for its source, which override those of the namespace.
    `retryTimeout` and `allowEviction` also apply to the destinations. `disable`: whether it only
    starts by its name.
    """

    __pydantic_config__ = DECLARATION_CONFIG

    section: ClassVar[str] = "exchanges"
    noun: ClassVar[str] = "exchange"
    runner: ClassVar[str] = "spark_queue.runner.exchange:ExchangeStep"
    title: ClassVar[str] = ""

    src: PlaceOrText
    dst: list[Annotated[Destination, BeforeValidator(parse_place)]]
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    delivery: Delivery | None = None
    every: IntervalMs = 0
    options: dict[str, str] = field(default_factory=dict)
    disable: bool = False

    @property
    def guarantee(self) -> str:
        """The delivery that applies."""
        return self.delivery or (EXACTLY_ONCE if self.consumer.reserve else AT_MOST_ONCE)

    @property
    def unrouted_queues(self) -> Mapping[Place, str]:
        """The queues beside the source for messages that it cannot route."""
        ns = self.src.ns
        return {Place(NO_ROUTE, ns): "no_route", Place(TOO_MANY_HOPS, ns): "too_many_hops"}

    def contradictions(self) -> Iterator[tuple[FieldPath, str]]:
        """Yield a source that no exchange may read, and a delivery that needs reservations."""
        if self.src.queue == TOO_MANY_HOPS:
            yield (
                ("src",),
                f"messages of {TOO_MANY_HOPS} have no hops left and would come back forever: push them again without "
                "the header x-hop-count instead",
            )
        if not self.consumer.reserve and self.guarantee != AT_MOST_ONCE:
            yield (
                ("consumer", "reserve"),
                f"delivery {self.delivery} needs reservations: leave this out, or set delivery: {AT_MOST_ONCE}",
            )

    def edges_out(self) -> list[Edge]:
        """Return an edge to each destination, with its selector and the fields that it changes."""
        return [
            Edge(
                one.place,
                "out",
                selector=selector_text(one.selector),
                changed_fields=[name for name in ("payload", "headers", "state") if getattr(one.set, name)],
            )
            for one in self.dst
        ]

    def to_json(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return its source, its delivery, and its destinations with their selectors."""
        dst = [
            {"queue": str(one), "selector": selector_text(one.selector) or None, "cycle": one.place in cyclic}
            for one in self.dst
        ]
        return {"src": str(self.src), "delivery": self.guarantee, "dst": dst}
