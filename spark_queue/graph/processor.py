"""Processors: functions between queues, each input delivered exactly once, whatever dies.

    processors:
      orders: {out: local/orders}                        # a source: `graph.send(...)` fills its queue
      add:                                               # a join: the n-th message of one with the n-th of the other
        in: {left: local/left, right: local/right}
        out: {sum: local/sums}
        fn: work.numbers:add
        rows: true                                       # called for each row of messages, not for a DataFrame
        errors: local/errors

What a processor is follows from its shape: see `Processor.kind`. This module knows what one is; what its function
gets is in `processor_function.py`, how it runs in `runner/processor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from spark_queue.graph.parts import (
    FORBID,
    AtPlace,
    Consumer,
    Delivery,
    Every,
    Function,
    Place,
    listed,
    place_of,
)

#: `source`: nothing but a queue that is sent to. `sink`: no output. `pipe`: one input, one output. `join`: several
#: inputs, zipped. `alts`: several inputs, of which each batch takes one. `fork`: several outputs. `imperative`: one
#: that reads or writes queues by itself.
Kind = Literal["source", "sink", "pipe", "join", "alts", "fork", "imperative"]

_NAMED = ConfigDict(**FORBID, populate_by_name=True)


@dataclass(frozen=True)
class Input(Place):
    """A queue that a processor reads: alone (`queue`), or with a place of its own in what it keeps (`log`)."""

    __pydantic_config__ = FORBID

    mode: Literal["queue", "log"] = "queue"

    @property
    def place(self) -> Place:
        """The queue, however it is read."""
        return Place(self.queue, self.ns)

    def __str__(self) -> str:
        return str(self.place)


def _input(value: Any) -> Any:
    if isinstance(value, Place) and not isinstance(value, Input):
        return {"queue": value.queue, "ns": value.ns}
    return place_of(value)


def bound(value: Any) -> Any:
    """Places by their bindings; of one place or of a list each is bound to the name of its queue."""
    if isinstance(value, Mapping) and "queue" not in value:
        return value
    made: dict[str, Any] = {}
    for one in listed(value):
        place = place_of(one)
        name = place.get("queue") if isinstance(place, Mapping) else getattr(place, "queue", None)
        if name is None:
            raise ValueError("a queue, a list of queues, or a mapping of names to queues")
        if name in made:
            raise ValueError(f"a mapping of names to queues, since two of these are called {name!r}")
        made[str(name)] = one
    return made


Inputs = Annotated[dict[str, Annotated[Input, BeforeValidator(_input)]], BeforeValidator(bound)]
Outputs = Annotated[dict[str, AtPlace], BeforeValidator(bound)]
Words = Annotated[list[str], BeforeValidator(listed)]


@dataclass(frozen=True)
class Processor:
    """A function between queues.

    `in_` (in a file: `in`): its inputs by binding, of which each step takes one message of every one, the n-th with
    the n-th; or `alts`, at least two, of which each batch takes from the first that has messages. `out`: its outputs
    by binding. One queue or a list stands for bindings that are called as the queues are.

    `fn`: the function (`module:function`), which gets a `Process` and, with `rows`, a mapping of bindings to
    `Message`s at a time, in Spark's workers; else a DataFrame with a column for each input. `opts`: what it finds in
    `Process.opts`. `errors`: where a row goes on which it fails; without, the query fails and starts again.

    `types`, `topics`: messages that pass, by their header of that name, or that field of the payload. Of both, both
    must pass. `delivery`: what holds for the inputs; outputs of a batch become visible all or none in any case.
    `tailers`, `appenders`: queues that the function reads and writes by itself, outside of the guarantee: then it
    runs on the driver. `consumer`, `every`, `options`: as of an exchange, but that one task keeps the order of the
    messages unless `consumer.parallel` says more.
    """

    __pydantic_config__ = _NAMED

    section: ClassVar[str] = "processors"
    runner: ClassVar[str] = "spark_queue.runner.processor:ProcessorStep"

    fn: Function = None
    in_: Annotated[Inputs, Field(alias="in")] = field(default_factory=dict)
    alts: Inputs = field(default_factory=dict)
    out: Outputs = field(default_factory=dict)
    rows: bool = False
    errors: AtPlace | None = None
    types: Words = field(default_factory=list)
    topics: Words = field(default_factory=list)
    delivery: Delivery = "exactly-once"
    opts: dict[str, Any] = field(default_factory=dict, repr=False)  # it may hold secrets
    tailers: Outputs = field(default_factory=dict)
    appenders: Outputs = field(default_factory=dict)
    consumer: Consumer = field(default_factory=Consumer)
    every: Every = 0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """What it is, by its shape."""
        if self.tailers or self.appenders:
            return "imperative"
        if not self.inputs:
            return "source"
        if not self.out:
            return "sink"
        if len(self.out) > 1:
            return "fork"
        if self.alts:
            return "alts"
        return "join" if len(self.in_) > 1 else "pipe"

    @property
    def inputs(self) -> dict[str, Input]:
        """What it reads, by binding."""
        return self.in_ or self.alts

    @property
    def src(self) -> Place | None:
        """Its first input, where it has one."""
        return next(iter(self.sources), None)

    @property
    def sources(self) -> list[Place]:
        """The queues that it takes from."""
        return [one.place for one in self.inputs.values()]

    @property
    def dst(self) -> list[Place]:
        """The queues that its outputs go to."""
        return list(self.out.values())

    @property
    def needs_all(self) -> bool:
        """Whether each of these must have messages."""
        return not self.alts

    @property
    def written(self) -> list[Place]:
        """The queues that its messages go to, that of errors last."""
        return [*self.dst, *([self.errors] if self.errors else [])]

    def others(self) -> list[Place]:
        """The queues beside its inputs and outputs: those it reads and writes by itself, and that of errors."""
        return [*self.tailers.values(), *self.appenders.values(), *([self.errors] if self.errors else [])]

    @property
    def guarantee(self) -> str:
        """The delivery that holds."""
        return self.delivery

    def namespaces(self) -> list[str]:
        """Where it writes: that of its first input too, for its sink keeps its ledger there in any case."""
        places = [*self.sources[:1], *self.dst, *([self.errors] if self.errors else [])]
        return list(dict.fromkeys(one.ns for one in places))

    def config(self) -> dict[str, Any]:
        """What was declared, as JSON can hold it: what is not there is left out."""
        bound = {name: {key: str(one) for key, one in places.items()} for name, places in self._places()}
        told: dict[str, Any] = {name: places for name, places in bound.items() if places}
        told |= {name: words for name in ("types", "topics") if (words := getattr(self, name))}
        if self.errors is not None:
            told["errors"] = str(self.errors)
        return told | {"delivery": self.delivery}

    def _places(self) -> list[tuple[str, Mapping[str, Place]]]:
        named = {one.name.rstrip("_"): getattr(self, one.name) for one in fields(self)}
        return [(name, named[name]) for name in ("in", "alts", "out", "tailers", "appenders")]
