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

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from spark_queue.graph.parts import (
    FORBID,
    AtPlace,
    ConsumerSettings,
    Delivery,
    Every,
    Function,
    Path,
    Place,
    inside,
    listed,
    place_of,
)
from spark_queue.graph.step import OWN_OPTIONS, Arrow, Intake, NamedQueue, Outline
from spark_queue.options.values import AT_MOST_ONCE

#: `source`: nothing but a queue that is sent to. `sink`: no output. `pipe`: one input, one output. `join`: several
#: inputs, zipped. `alts`: several inputs, of which each batch takes one. `fork`: several outputs. `imperative`: one
#: that reads or writes queues by itself.
Kind = Literal["source", "sink", "pipe", "join", "alts", "fork", "imperative"]

#: The keys below which queues are bound to names.
_BOUND = ("in", "alts", "out", "tailers", "appenders")

#: How one is drawn; a source and a sink have looks of their own.
_OUTLINES = {
    "source": Outline("cds", "#d9efdc", "filled", ">", "]"),
    "sink": Outline("component", "#e6dcf2", "filled", "[[", "]]"),
}
_OUTLINE = Outline("component", "#d9efdc", "filled", "[[", "]]")

_P = TypeVar("_P", bound=Place)

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


InputsByName = Annotated[dict[str, Annotated[Input, BeforeValidator(_input)]], BeforeValidator(bound)]
PlacesByName = Annotated[dict[str, AtPlace], BeforeValidator(bound)]
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
    noun: ClassVar[str] = "processor"
    runner: ClassVar[str] = "spark_queue.runner.processor:ProcessorStep"
    alone: ClassVar[bool] = True

    fn: Function = None
    in_: Annotated[InputsByName, Field(alias="in")] = field(default_factory=dict)
    alts: InputsByName = field(default_factory=dict)
    out: PlacesByName = field(default_factory=dict)
    rows: bool = False
    errors: AtPlace | None = None
    types: Words = field(default_factory=list)
    topics: Words = field(default_factory=list)
    delivery: Delivery = "exactly-once"
    opts: dict[str, Any] = field(default_factory=dict, repr=False)  # it may hold secrets
    tailers: PlacesByName = field(default_factory=dict)
    appenders: PlacesByName = field(default_factory=dict)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
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
    def by_row(self) -> bool:
        """Whether its function is called for each row of messages."""
        return self.kind == "imperative" or (self.rows and self.kind != "source")

    # --- the queues around it -----------------------------------------------------------------------------------

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

    @property
    def leftovers(self) -> Mapping[Place, str]:
        """None: what fails goes to its error queue, or comes again."""
        return {}

    @property
    def entry(self) -> Place | None:
        """The queue of a source."""
        return self.dst[0] if self.kind == "source" else None

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
        return [(name, named[name]) for name in _BOUND]

    # --- how it is read from a file and checked -----------------------------------------------------------------

    @classmethod
    def named(cls, raw: Any) -> Iterator[NamedQueue]:
        """Yield the queues that it is bound to: with an input, the others lie in its namespace by default."""
        given = {key: inside(raw, key) or inside(raw, f"{key}_") for key in _BOUND}
        reads = bool(given["in"] or given["alts"])
        for key, value in given.items():
            try:
                places = bound(value or {})
            except ValueError:
                continue  # reported elsewhere
            for binding, place in places.items():
                yield NamedQueue((key, binding), place, key in ("in", "alts") or not reads)
        if not any(given.values()):
            yield NamedQueue((), "its own name", needed=True)  # a source: its queue is called as it is
        if (errors := inside(raw, "errors")) is not None:
            yield NamedQueue(("errors",), errors, not reads)

    def filled(self, name: str, only: str, errors: Place | None) -> Self:
        """Return it with its namespaces, the queue of a source, and the error queue of its graph."""
        in_, alts = ({key: _in(only, place) for key, place in places.items()} for places in (self.in_, self.alts))
        home = next((first.ns for first in [*in_.values(), *alts.values()]), only)
        out, tailers, appenders = (
            {key: _in(home, place) for key, place in places.items()}
            for places in (self.out, self.tailers, self.appenders)
        )
        if self.kind == "source" and not self.out:
            out = {name: Place(name, only)}
        own = errors if self.by_row else None
        own = _in(home, self.errors) if self.errors else own
        return replace(self, in_=in_, alts=alts, out=out, tailers=tailers, appenders=appenders, errors=own)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        """Yield what does not fit its shape, and queues that it names twice."""
        if self.in_ and self.alts:
            yield ("alts",), "give either `in` (a message of every input) or `alts` (of one input), not both"
        if len(self.alts) == 1:
            yield ("alts",), "needs at least two queues: for one, use `in`"
        for key, places in self._places():
            bound_to: dict[Place, str] = {}
            for binding, place in places.items():
                if (other := bound_to.setdefault(place.place, binding)) != binding:
                    yield (key, binding), f"this is also the queue of {other!r}: name another"
        if self.kind == "source":
            yield from self._misused_source()
            return
        if self.fn is None:
            yield (), "'fn' is missing: the function, as module:function"
        if self.kind == "imperative" and len(self.out) > 1:
            yield (
                ("out",),
                "with `tailers` or `appenders` there is at most one output: move the others to `appenders`",
            )
        if self.errors is not None and not self.by_row:
            yield ("errors",), "only functions on rows have an error queue: set `rows: true`, or leave this out"
        if not self.consumer.reserve:
            yield ("consumer", "reserve"), f"set delivery: {AT_MOST_ONCE} instead"
        if not self.inputs and (self.types or self.topics):
            yield ("types" if self.types else "topics",), "the processor has no input to filter: leave this out"

    def _misused_source(self) -> Iterator[tuple[Path, str]]:
        if self.fn is not None:
            yield ("fn",), "the processor has no input: add `in`, `alts` or `tailers`"
        elif len(self.out) > 1:
            yield ("out",), "a source has one queue: keep one, or add an input"
        else:
            plain = Processor(out=self.out)
            for one in fields(self):
                if getattr(self, one.name) != getattr(plain, one.name):
                    yield (one.name,), "a source has only `out`: leave this out, or add `fn` and an input"

    def refused_options(self) -> Mapping[str, str]:
        """Return all that a step may set itself; on DataFrames, it may choose the form of payloads."""
        return {key: by for key, by in OWN_OPTIONS.items() if self.by_row or key != "payloadFormat"}

    def taken(self) -> Iterator[Intake]:
        """Yield its inputs, which it shares with others by a place of its own in the log."""
        for key, inputs in (("in", self.in_), ("alts", self.alts)):
            for binding, one in inputs.items():
                yield Intake((key, binding), one.place, one.mode == "log")

    # --- how it is drawn ----------------------------------------------------------------------------------------

    @property
    def caption(self) -> str:
        """Its kind, but of a source."""
        return "" if self.kind == "source" else self.kind

    @property
    def title(self) -> str:
        """Its kind."""
        return self.kind

    @property
    def outline(self) -> Outline:
        """The outline of its kind."""
        return _OUTLINES.get(self.kind, _OUTLINE)

    def arrows_in(self) -> list[Arrow]:
        """Return one for each queue it reads; of several, with the name, and of `alts` the number."""
        inputs: list[tuple[str, Place]] = [*self.inputs.items(), *self.tailers.items()]
        if len(inputs) < 2:
            return [Arrow(one.place, "in") for _, one in inputs]
        return [
            Arrow(one.place, "in", f"{number}. {name}" if self.alts else name)
            for number, (name, one) in enumerate(inputs, 1)
        ]

    def arrows_out(self) -> list[Arrow]:
        """Return one for each queue it writes, of several with the name, and one for errors."""
        outputs = [*self.out.items(), *self.appenders.items()]
        made = [Arrow(one, "out", name if len(outputs) > 1 else "") for name, one in outputs]
        return made + ([Arrow(self.errors, "errors", "errors")] if self.errors else [])

    def facts(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return its kind, its queues by their bindings, its delivery, and which destinations are on a cycle."""
        return {
            "kind": self.kind,
            **{key: value for key, value in self.config().items() if isinstance(value, dict)},
            "errors": str(self.errors) if self.errors else None,
            "delivery": self.delivery,
            "cycle": sorted(map(str, cyclic)),
        }


def _in(ns: str, place: _P) -> _P:
    return replace(place, ns=place.ns or ns)
