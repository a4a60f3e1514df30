"""Processors: steps that call a function between queues; each input is delivered exactly once.

    processors:
      orders: {out: local/orders}                    # a source: `graph.send(...)` fills its queue
      add:                                           # a join: rows of the n-th messages of both
        in: {left: local/left, right: local/right}
        out: {sum: local/sums}
        fn: work.numbers:add
        rows: true                                   # call it for each row
        errors: local/errors

The kind of a processor follows from its shape: see `Processor.kind`. This module has the
declaration. The arguments of the function are in `processor_function.py`, its execution in
`runner/processor.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field

from spark_queue.graph.parts import (
    DECLARATION_CONFIG,
    ConsumerSettings,
    Delivery,
    FieldPath,
    Function,
    IntervalMs,
    Place,
    PlaceOrText,
    as_list,
    get_field,
    in_namespace,
    parse_place,
)
from spark_queue.graph.step import RESERVED_OPTIONS, Edge, InputQueue, Outline, QueueReference, Step
from spark_queue.options.values import AT_MOST_ONCE

#: `source`: only a queue that `send` fills. `sink`: no output. `pipe`: one input, one output.
#: `join`: several inputs, zipped. `alts`: several inputs, of which each batch reads one. `fork`:
#: several outputs. `imperative`: its function reads or writes queues by itself.
Kind = Literal["source", "sink", "pipe", "join", "alts", "fork", "imperative"]

#: The keys with queues by binding.
_QUEUE_KEYS = ("in", "alts", "out", "tailers", "appenders")


@dataclass(frozen=True)
class Input(Place):
    """A queue that a processor reads: as its only reader (`queue`), or beside others (`log`)."""

    __pydantic_config__ = DECLARATION_CONFIG

    mode: Literal["queue", "log"] = "queue"

    @property
    def place(self) -> Place:
        """The queue without the mode."""
        return Place(self.queue, self.ns)


def _parse_input(value: Any) -> Any:
    if isinstance(value, Place) and not isinstance(value, Input):
        return {"queue": value.queue, "ns": value.ns}
    return parse_place(value)


def parse_bindings(value: Any) -> Any:
    """Return places by binding; without a binding, a place is bound to the name of its queue.

    Raises `ValueError` if the value names no queue, or the same name twice.
    """
    if isinstance(value, Mapping) and "queue" not in value:
        return value
    made: dict[str, Any] = {}
    for one in as_list(value):
        place = parse_place(one)
        name = place.get("queue") if isinstance(place, Mapping) else getattr(place, "queue", None)
        if name is None:
            raise ValueError("a queue, a list of queues, or a mapping of names to queues")
        if name in made:
            raise ValueError(f"a mapping of names to queues, since two of these are called {name!r}")
        made[str(name)] = one
    return made


InputsByName = Annotated[dict[str, Annotated[Input, BeforeValidator(_parse_input)]], BeforeValidator(parse_bindings)]
PlacesByName = Annotated[dict[str, PlaceOrText], BeforeValidator(parse_bindings)]
TextList = Annotated[list[str], BeforeValidator(as_list)]


@dataclass(frozen=True)
class Processor(Step):
    """A step that calls a function between queues.

    `in_` (in a file: `in`): its inputs by binding. A row has one message of each input, the n-th of
    each. `alts`: at least two inputs instead; each batch reads the first one that has messages.
    `out`: its outputs by binding. For a single queue, or a list, the bindings are the names of the
    queues.

    `fn`: the function, or its `module:function`. It gets a `ProcessorContext`, and a DataFrame with
    a column for each input. With `rows` it is called in Spark's workers, with one row at a time: a
    mapping from bindings to `Message`s. `opts`: options for the function, in
    `ProcessorContext.opts`. `errors`: the queue for rows on which the function fails. Without it,
    the query fails and starts again.

    `types`: a message passes if its header `type`, or that field of its payload, is one of these.
    `topics`: it passes if its header `topics`, or that field, has one of these. Given both, it must
    pass both.

    `delivery`: the delivery of the inputs. In any case, the outputs of a batch become visible all
    at once, or not at all. `tailers`, `appenders`: queues that the function reads and writes by
    itself, without that guarantee. Such a function runs on the driver. `consumer`, `every`,
    `options`, `disable`: as in an exchange. But `consumer.parallel` is 1 by default, which keeps
    the order of the messages.
    """

    __pydantic_config__ = ConfigDict(**DECLARATION_CONFIG, populate_by_name=True)

    section: ClassVar[str] = "processors"
    noun: ClassVar[str] = "processor"
    runner: ClassVar[str] = "spark_queue.runner.processor:ProcessorStep"
    exclusive: ClassVar[bool] = True

    fn: Function = None
    in_: Annotated[InputsByName, Field(alias="in")] = field(default_factory=dict)
    alts: InputsByName = field(default_factory=dict)
    out: PlacesByName = field(default_factory=dict)
    rows: bool = False
    errors: PlaceOrText | None = None
    types: TextList = field(default_factory=list)
    topics: TextList = field(default_factory=list)
    delivery: Delivery = "exactly-once"
    opts: dict[str, Any] = field(default_factory=dict, repr=False)  # it may hold secrets
    tailers: PlacesByName = field(default_factory=dict)
    appenders: PlacesByName = field(default_factory=dict)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    every: IntervalMs = 0
    options: dict[str, str] = field(default_factory=dict)
    disable: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of the processor, by its shape."""
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

    # --- the queues around it ---------------------------------------------------------------------

    @property
    def inputs(self) -> dict[str, Input]:
        """Its inputs by binding."""
        return self.in_ or self.alts

    @property
    def src(self) -> Place | None:
        """Its first input, if any."""
        return next(iter(self.sources), None)

    @property
    def sources(self) -> list[Place]:
        """The queues that it reads."""
        return [one.place for one in self.inputs.values()]

    @property
    def dst(self) -> list[Place]:
        """The queues of its outputs."""
        return list(self.out.values())

    @property
    def needs_all(self) -> bool:
        """Whether a batch needs messages in all sources, and not only in one."""
        return not self.alts

    @property
    def written_queues(self) -> list[Place]:
        """The queues that its messages go to, the error queue last."""
        return [*self.dst, *([self.errors] if self.errors else [])]

    @property
    def entry(self) -> Place | None:
        """The queue of a source."""
        return self.dst[0] if self.kind == "source" else None

    def other_queues(self) -> list[Place]:
        """Return the queues that its function reads and writes by itself, and the error queue."""
        return [*self.tailers.values(), *self.appenders.values(), *([self.errors] if self.errors else [])]

    @property
    def guarantee(self) -> str:
        """The delivery that applies."""
        return self.delivery

    def config(self) -> dict[str, Any]:
        """Return its queues, filters and delivery in the types of JSON, without empty fields."""
        bindings = self._bindings().items()
        queues = {key: {name: str(one) for name, one in places.items()} for key, places in bindings}
        declared: dict[str, Any] = {name: places for name, places in queues.items() if places}
        declared |= {name: words for name in ("types", "topics") if (words := getattr(self, name))}
        if self.errors is not None:
            declared["errors"] = str(self.errors)
        return declared | {"delivery": self.delivery}

    def _bindings(self) -> dict[str, Mapping[str, Place]]:
        return {key: getattr(self, "in_" if key == "in" else key) for key in _QUEUE_KEYS}

    # --- how it is read from a file and checked ---------------------------------------------------

    @classmethod
    def queue_references(cls, raw: Any) -> Iterator[QueueReference]:
        """Yield the queues that it is bound to.

        With an input, the others are in the namespace of the first input by default.
        """
        declared = {key: get_field(raw, key) or get_field(raw, f"{key}_") for key in _QUEUE_KEYS}
        reads = bool(declared["in"] or declared["alts"])
        for key, value in declared.items():
            try:
                places = parse_bindings(value or {})
            except ValueError:
                continue  # a mistake that pydantic reports
            for binding, place in places.items():
                yield QueueReference((key, binding), place, key in ("in", "alts") or not reads)
        if not any(declared.values()):
            yield QueueReference((), "its own name", namespace_required=True)  # a source
        if (errors := get_field(raw, "errors")) is not None:
            yield QueueReference(("errors",), errors, not reads)

    def with_defaults(self, name: str, default_namespace: str, errors: Place | None) -> Self:
        """Return it with its namespaces, and its defaults for `out` and `errors`."""
        ns = (self.src.ns if self.src else "") or default_namespace
        in_, alts = (_in_namespace(places, default_namespace) for places in (self.in_, self.alts))
        out, tailers, appenders = (_in_namespace(one, ns) for one in (self.out, self.tailers, self.appenders))
        if self.kind == "source" and not self.out:
            out = {name: Place(name, default_namespace)}
        read = [one.place for one in (*in_.values(), *alts.values())]
        error_queue = errors if self.by_row and errors not in read else None
        if self.errors:
            error_queue = in_namespace(self.errors, ns)
        return replace(self, in_=in_, alts=alts, out=out, tailers=tailers, appenders=appenders, errors=error_queue)

    def contradictions(self) -> Iterator[tuple[FieldPath, str]]:
        """Yield settings that do not fit its kind, and queues that it names twice."""
        yield from self._binding_mistakes()
        if self.kind == "source":
            yield from self._source_mistakes()
        else:
            yield from self._function_mistakes()
            yield from self._input_mistakes()

    def _binding_mistakes(self) -> Iterator[tuple[FieldPath, str]]:
        if self.in_ and self.alts:
            yield ("alts",), "give either `in` (a message of every input) or `alts` (of one input), not both"
        if len(self.alts) == 1:
            yield ("alts",), "needs at least two queues: for one, use `in`"
        for key, places in self._bindings().items():
            bound_to: dict[Place, str] = {}
            for binding, place in places.items():
                if (other := bound_to.setdefault(place.place, binding)) != binding:
                    yield (key, binding), f"this is also the queue of {other!r}: name another"

    def _function_mistakes(self) -> Iterator[tuple[FieldPath, str]]:
        if self.fn is None:
            yield (), "'fn' is missing: the function, as module:function"
        if self.kind == "imperative" and len(self.out) > 1:
            yield (
                ("out",),
                "with `tailers` or `appenders` there is at most one output: move the others to `appenders`",
            )
        if self.errors is not None and not self.by_row:
            yield ("errors",), "only functions on rows have an error queue: set `rows: true`, or leave this out"

    def _input_mistakes(self) -> Iterator[tuple[FieldPath, str]]:
        for binding, one in self.inputs.items():
            same_ns = self.errors is not None and (one.ns == self.errors.ns or not (one.ns and self.errors.ns))
            if self.errors is not None and same_ns and one.queue == self.errors.queue:
                yield ("errors",), f"it is the input {binding!r}: what fails would come back forever; name another"
        if not self.consumer.reserve:
            yield ("consumer", "reserve"), f"set delivery: {AT_MOST_ONCE} instead"
        if not self.inputs and (self.types or self.topics):
            yield ("types" if self.types else "topics",), "the processor has no input to filter: leave this out"

    def _source_mistakes(self) -> Iterator[tuple[FieldPath, str]]:
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
        """Return all options that a step may set itself.

        On DataFrames, `payloadFormat` is allowed.
        """
        return {key: by for key, by in RESERVED_OPTIONS.items() if self.by_row or key != "payloadFormat"}

    def input_queues(self) -> Iterator[InputQueue]:
        """Yield its inputs; those that it reads as a log are shared."""
        for key, inputs in (("in", self.in_), ("alts", self.alts)):
            for binding, one in inputs.items():
                yield InputQueue((key, binding), one.place, one.mode == "log")

    # --- how it is drawn --------------------------------------------------------------------------

    @property
    def caption(self) -> str:
        """Its kind; empty for a source."""
        return "" if self.kind == "source" else self.kind

    @property
    def outline(self) -> Outline:
        """The outline of its kind: a source is an arrow, and a sink has another color."""
        shape = "cds" if self.kind == "source" else "component"
        color = "#e6dcf2" if self.kind == "sink" else "#d9efdc"
        return Outline(shape, color, "filled")

    def edges_in(self) -> list[Edge]:
        """Return one edge for each queue that it reads.

        With several, each has the name of its binding, and with `alts` a number.
        """
        inputs: list[tuple[str, Place]] = [*self.inputs.items(), *self.tailers.items()]
        if len(inputs) < 2:
            return [Edge(one.place, "in") for _, one in inputs]
        return [
            Edge(one.place, "in", f"{number}. {name}" if self.alts else name)
            for number, (name, one) in enumerate(inputs, 1)
        ]

    def edges_out(self) -> list[Edge]:
        """Return one edge for each queue that it writes, and one for the error queue.

        With several outputs, each has the name of its binding.
        """
        outputs = [*self.out.items(), *self.appenders.items()]
        edges = [Edge(one, "out", name if len(outputs) > 1 else "") for name, one in outputs]
        return edges + ([Edge(self.errors, "errors", "errors")] if self.errors else [])

    def to_json(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return its kind, its queues by binding, its delivery, and its destinations on a cycle."""
        return {
            "kind": self.kind,
            **{key: value for key, value in self.config().items() if isinstance(value, dict)},
            "errors": str(self.errors) if self.errors else None,
            "delivery": self.delivery,
            "cycle": sorted(map(str, cyclic)),
        }


def _in_namespace(places: Mapping[str, Place], ns: str) -> dict[str, Any]:
    return {name: in_namespace(one, ns) for name, one in places.items()}
