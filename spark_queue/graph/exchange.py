"""Exchanges: each message of a queue is copied to those of its destinations whose selector it fits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from spark_queue.graph.parts import (
    FORBID,
    AtPlace,
    ConsumerSettings,
    Delivery,
    Entries,
    Every,
    Expression,
    Path,
    Place,
    place_of,
)
from spark_queue.graph.selector_words import selector_text
from spark_queue.graph.step import Arrow, OneSource
from spark_queue.options.values import AT_MOST_ONCE, EXACTLY_ONCE

#: Queues, in the namespace of an exchange's source, for what it cannot route.
NO_ROUTE, TOO_MANY_HOPS = "__no_route__", "__too_many_hops__"


@dataclass(frozen=True)
class Changes:
    """What a destination changes of a message that goes there, for the destinations after it, too.

    `payload` becomes the value of an expression; `headers` and `state` keep what is not named, and lose what becomes
    NULL.
    """

    __pydantic_config__ = FORBID

    payload: Expression | None = None
    headers: Entries = field(default_factory=dict)
    state: Entries = field(default_factory=dict)


@dataclass(frozen=True)
class Destination:
    """A queue, and who goes there: those for which the selector is true, or a struct (`mature`, `delay`, `tries`)."""

    __pydantic_config__ = FORBID

    queue: Annotated[str, Field(min_length=1)]
    selector: Expression | None = None
    set: Changes = field(default_factory=Changes)
    ns: str = ""

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.queue, self.ns)

    def __str__(self) -> str:
        return str(self.place)


@dataclass(frozen=True)
class Exchange(OneSource):
    """From one queue to any number of others.

    `delivery`: exactly once, unless `consumer.reserve` is false, which is at most once. `every`: ms from the start of
    a batch to that of the next; 0: as soon as there is something. `options`: those of `format("queue")` to read the
    source, before those of its namespace; `retryTimeout` and `allowEviction` hold for the destinations, too.
    """

    __pydantic_config__ = FORBID

    section: ClassVar[str] = "exchanges"
    noun: ClassVar[str] = "exchange"
    runner: ClassVar[str] = "spark_queue.runner.exchange:ExchangeStep"
    title: ClassVar[str] = ""

    src: AtPlace
    dst: list[Annotated[Destination, BeforeValidator(place_of)]]
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    delivery: Delivery | None = None
    every: Every = 0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def guarantee(self) -> str:
        """The delivery that holds."""
        return self.delivery or (EXACTLY_ONCE if self.consumer.reserve else AT_MOST_ONCE)

    @property
    def leftovers(self) -> Mapping[Place, str]:
        """The queues of what it cannot route, beside its source."""
        ns = self.src.ns
        return {Place(NO_ROUTE, ns): "no_route", Place(TOO_MANY_HOPS, ns): "too_many_hops"}

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        """Yield what cannot be read again, and a delivery that needs reservations."""
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

    def arrows_out(self) -> list[Arrow]:
        """Return one to each destination, with its selector and what it changes."""
        return [
            Arrow(
                one.place,
                "out",
                selector=selector_text(one.selector),
                sets=[name for name in ("payload", "headers", "state") if getattr(one.set, name)],
            )
            for one in self.dst
        ]

    def facts(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return its source, delivery and destinations, with their selectors."""
        dst = [
            {"queue": str(one), "selector": selector_text(one.selector) or None, "cycle": one.place in cyclic}
            for one in self.dst
        ]
        return {"src": str(self.src), "delivery": self.guarantee, "dst": dst}
