"""The interface of a step of a graph.

Each kind of step is a subclass of `Step`, and a field of `Graph`. No other code knows the
kinds: loading, checks, drawings and the runner use only this interface.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from spark_queue.graph.parts import ConsumerSettings, FieldPath, Place, PlaceOrText, get_field, in_namespace


class Target(Protocol):
    """A destination of messages."""

    @property
    def place(self) -> Place:
        """The queue."""


class QueueReference(NamedTuple):
    """A queue as a declaration names it; the name may be wrong.

    `path`: its path below the step. `namespace_required`: whether it must name its namespace,
    unless the graph has only one.
    """

    path: FieldPath
    place: Any
    namespace_required: bool


class InputQueue(NamedTuple):
    """A queue that a step reads, and its path below the step.

    `shared`: whether other readers get the same messages, because the queue is read as a log.
    """

    path: FieldPath
    place: Place
    shared: bool


class Edge(NamedTuple):
    """An edge between a step and a queue in a drawing; `role` is `in`, `out`, or `errors`.

    `name`: the name of the input or output, if the step has several. `selector`: the messages that
    go there. `changed_fields`: the fields that change for this destination.
    """

    place: Place
    role: str
    name: str = ""
    selector: str = ""
    changed_fields: Sequence[str] = ()


class Outline(NamedTuple):
    """How a step is drawn: the shape, color and style for Graphviz."""

    form: str
    color: str
    style: str


#: The options of `format("queue")` that a step sets itself, each with the remedy.
RESERVED_OPTIONS = {
    "url": "set the URL of the namespace instead",
    "queue": "set `src` instead",
    "consumer": "the name of the step is the consumer",
    "delivery": "set `delivery` of the step instead",
    "maxRecordsPerTrigger": "set `consumer: {wsize: …}` instead",
    "numPartitions": "set `consumer: {parallel: …}` instead",
    "payloadFormat": "selectors and functions on rows read JSON",
    "layout": "set ?layout= in the URL of the namespace instead",
    "inputs": "set `in` or `alts` of a processor instead",
    "combine": "set `in` or `alts` of a processor instead",
    "urls": "set `namespaces` instead",
    "mode": "set `mode` of an input of a processor instead",
}


class Step(Protocol):
    """The base class of a step as a graph declares it.

    `section`: the field of `Graph` with the steps of this kind. `noun`: the word for one of them.
    `runner`: its `RunnableStep`, as `module:class`. `exclusive`: whether no other step may read its
    queues, unless both share them.
    """

    section: ClassVar[str]
    noun: ClassVar[str]
    runner: ClassVar[str]
    exclusive: ClassVar[bool]

    if TYPE_CHECKING:  # at run time, a property would be the default of the field of this name

        @property
        def src(self) -> Place | None:
            """The first queue that it reads, if any."""

        @property
        def dst(self) -> Sequence[Target]:
            """The destinations of its outputs."""

        @property
        def consumer(self) -> ConsumerSettings:
            """The size of its batches, and the number of its tasks."""

        @property
        def options(self) -> dict[str, str]:
            """More options of its reader."""

        @property
        def every(self) -> int:
            """The minimum time between the starts of two batches (ms)."""

        @property
        def disable(self) -> bool:
            """Whether it only starts by its name, and not with all others."""
            return False

    else:
        disable = False

    @property
    def guarantee(self) -> str:
        """The delivery that applies."""

    # --- the queues around it ---------------------------------------------------------------------

    @property
    def sources(self) -> list[Place]:
        """The queues that it reads."""

    @property
    def needs_all(self) -> bool:
        """Whether a batch needs messages in all sources, and not only in one."""

    @property
    def written_queues(self) -> list[Place]:
        """The queues that it writes and counts, the error queue last."""

    @property
    def unrouted_queues(self) -> Mapping[Place, str]:
        """The queues for messages that it cannot pass on, each with its counter in `Traffic`."""
        return {}

    @property
    def entry(self) -> Place | None:
        """The queue that `send` pushes to. A step that has one is a source, and does not run."""

    def other_queues(self) -> list[Place]:
        """Return its queues that are neither inputs nor outputs."""
        return []

    @property
    def home(self) -> Place:
        """A queue of the namespace that keeps its notes and its statistics."""
        return self.src or self.other_queues()[0]

    # --- how it is read from a file and checked ---------------------------------------------------

    @classmethod
    def queue_references(cls, raw: Any) -> Iterator[QueueReference]:
        """Yield the queues that such a step names.

        `raw`: a step, or its unchecked declaration from a file.
        """

    def with_defaults(self, name: str, default_namespace: str, errors: Place | None) -> Self:
        """Return the step with its defaults filled in.

        `default_namespace`: the only namespace of the graph, or an empty text. `errors`: the error
        queue of the graph.
        """

    def contradictions(self) -> Iterator[tuple[FieldPath, str]]:
        """Yield settings that exclude each other: the path, and the remedy."""
        yield from ()

    def refused_options(self) -> Mapping[str, str]:
        """Return the options of `format("queue")` that it sets itself, each with the remedy."""
        return RESERVED_OPTIONS

    def input_queues(self) -> Iterator[InputQueue]:
        """Yield the queues that it reads, to find steps that compete for a queue."""

    # --- how it is drawn --------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The kind of its node in the topology of a graph: its noun by default."""
        return self.noun

    @property
    def caption(self) -> str:
        """The text below its name; empty if its shape says enough."""

    @property
    def title(self) -> str:
        """The text after its name in a tree, which has no shapes: its kind by default."""
        return self.kind

    @property
    def outline(self) -> Outline:
        """The shape around its name."""

    def edges_in(self) -> list[Edge]:
        """Return the edges that lead to it."""

    def edges_out(self) -> list[Edge]:
        """Return the edges that lead from it."""

    def to_json(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return the step as a JSON object.

        `cyclic`: the destinations from which messages can come back.
        """


@dataclass(frozen=True)
class SingleSourceStep(Step):
    """Defaults for a step with one source.

    The field `dst` has its destinations.
    """

    exclusive: ClassVar[bool] = False
    entry: ClassVar[Place | None] = None
    needs_all: ClassVar[bool] = True
    caption: ClassVar[str] = ""
    outline: ClassVar[Outline] = Outline("box", "#ffe9c7", "filled,rounded")

    src: PlaceOrText

    @property
    def sources(self) -> list[Place]:
        """Its one source."""
        return [self.src]

    @property
    def written_queues(self) -> list[Place]:
        """Its destinations."""
        return [one.place for one in self.dst]

    @classmethod
    def queue_references(cls, raw: Any) -> Iterator[QueueReference]:
        """Yield its source and its destinations.

        A destination is in the namespace of the source by default.
        """
        yield QueueReference(("src",), get_field(raw, "src"), namespace_required=True)
        to = get_field(raw, "dst")
        for number, one in enumerate(to if isinstance(to, list) else ()):
            yield QueueReference(("dst", number), one, namespace_required=False)

    def with_defaults(self, name: str, default_namespace: str, errors: Place | None) -> Self:
        """Return the step with its namespaces filled in."""
        src = in_namespace(self.src, default_namespace)
        facts: dict[str, Any] = {"dst": [in_namespace(one, src.ns) for one in self.dst]}
        return replace(self, src=src, **facts)

    def input_queues(self) -> Iterator[InputQueue]:
        """Yield its source."""
        yield InputQueue(("src",), self.src, shared=False)

    def edges_in(self) -> list[Edge]:
        """Return one edge, from its source."""
        return [Edge(self.src, "in")]

    def edges_out(self) -> list[Edge]:
        """Return one edge to each destination."""
        return [Edge(one.place, "out") for one in self.dst]

    def to_json(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return its source and its destinations, and whether each of these is on a cycle."""
        dst = [{"queue": str(one), "cycle": one in cyclic} for one in self.written_queues]
        return {"src": str(self.src), "dst": dst}
