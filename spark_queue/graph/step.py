"""What is asked of a step of a graph, whatever kind it is.

Each kind is a class that answers as `Step` says, and a field of `Graph` that has steps of it. Nothing else knows
which kinds there are: what reads, checks, draws and runs a graph asks each of its steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from spark_queue.graph.parts import AtPlace, ConsumerSettings, Path, Place, inside


class Target(Protocol):
    """Where messages go."""

    @property
    def place(self) -> Place:
        """The queue."""


class NamedQueue(NamedTuple):
    """A queue as a declaration names it, which may be wrong.

    `path`: where, below the step. `needed`: the namespace does not go without saying, unless the graph has one alone.
    """

    path: Path
    place: Any
    needed: bool


class Intake(NamedTuple):
    """A queue that a step takes from, and where it says so. `shared`: without taking anything from other readers."""

    path: Path
    place: Place
    shared: bool


class Arrow(NamedTuple):
    """An arrow between a step and a queue: `role` is `in`, `out`, or `errors`.

    `name`: that of an input or output, where the step has several. `selector`: which messages go there, and `sets`:
    what is changed of them.
    """

    place: Place
    role: str
    name: str = ""
    selector: str = ""
    sets: Sequence[str] = ()


class Outline(NamedTuple):
    """How a step is drawn: Graphviz' shape, color and style, and what stands around its name for Mermaid."""

    form: str
    color: str
    style: str
    left: str
    right: str


class Step(Protocol):
    """A step as a graph declares it.

    `section`: the field of a graph that has steps of its kind, and `noun`: what one of these is called. `runner`: the
    `RunnableStep` of it, as `module:class`. `alone`: no other step may take from its queues, unless both share them.
    """

    section: ClassVar[str]
    noun: ClassVar[str]
    runner: ClassVar[str]
    alone: ClassVar[bool]

    # --- the queues around it -----------------------------------------------------------------------------------

    @property
    def src(self) -> Place | None:
        """The first queue that it takes from."""

    @property
    def sources(self) -> list[Place]:
        """The queues that it takes from."""

    @property
    def needs_all(self) -> bool:
        """Whether each of these must have messages."""

    @property
    def dst(self) -> Sequence[Target]:
        """The queues that its outputs go to."""

    @property
    def written(self) -> list[Place]:
        """The queues that it writes and counts, that of errors last."""

    @property
    def leftovers(self) -> Mapping[Place, str]:
        """The queues of what it cannot pass on, and what counts that in its `Traffic`."""

    @property
    def entry(self) -> Place | None:
        """The queue that messages are sent to by its name: then this is all it is, and nothing runs it."""

    def others(self) -> list[Place]:
        """Return the queues beside its inputs and outputs."""

    def namespaces(self) -> list[str]:
        """Return where it writes."""

    # --- how it reads -------------------------------------------------------------------------------------------

    @property
    def consumer(self) -> ConsumerSettings:
        """How many messages it takes, in how many tasks."""

    @property
    def options(self) -> dict[str, str]:
        """More options of its reader."""

    @property
    def every(self) -> int:
        """How many ms lie between the starts of two batches, at least."""

    @property
    def guarantee(self) -> str:
        """The delivery that holds."""

    # --- how it is read from a file and checked -----------------------------------------------------------------

    @classmethod
    def named(cls, raw: Any) -> Iterator[NamedQueue]:
        """Yield the queues that such a step names. `raw`: one, or what a file says of it, right or wrong."""

    def filled(self, name: str, only: str, errors: Place | None) -> Self:
        """Return it with its defaults: the only namespace, and the error queue, of its graph."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        """Yield what does not go together in it: where, and what to do."""

    def refused_options(self) -> Mapping[str, str]:
        """Return the options of `format("queue")` that it sets itself, and what to set instead."""

    def taken(self) -> Iterator[Intake]:
        """Yield the queues that it takes from, as other steps may."""

    # --- how it is drawn ----------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """What it is, in the topology of a graph."""

    @property
    def caption(self) -> str:
        """What stands below its name; nothing where its shape says enough."""

    @property
    def title(self) -> str:
        """What stands after its name where it has no shape."""

    @property
    def outline(self) -> Outline:
        """The shape around its name."""

    def arrows_in(self) -> list[Arrow]:
        """Return the arrows that lead to it."""

    def arrows_out(self) -> list[Arrow]:
        """Return the arrows that lead from it."""

    def facts(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return what JSON tells of it. `cyclic`: the destinations from which messages can come back."""


#: Options of `format("queue")` that a step sets itself, and what to set instead.
OWN_OPTIONS = {
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


@dataclass(frozen=True)
class OneSource:
    """What a step with one source answers, unless it knows better. Its field `dst` has its destinations."""

    noun: ClassVar[str]
    alone: ClassVar[bool] = False
    entry: ClassVar[Place | None] = None
    needs_all: ClassVar[bool] = True
    caption: ClassVar[str] = ""
    outline: ClassVar[Outline] = Outline("box", "#ffe9c7", "filled,rounded", "([", "])")

    src: AtPlace

    if TYPE_CHECKING:  # at run time it would be the default of a field

        @property
        def dst(self) -> Sequence[Target]:
            """Its destinations."""

    @property
    def sources(self) -> list[Place]:
        """Its one source."""
        return [self.src]

    @property
    def written(self) -> list[Place]:
        """Its destinations."""
        return [one.place for one in self.dst]

    @property
    def leftovers(self) -> Mapping[Place, str]:
        """None: it passes on everything."""
        return {}

    def others(self) -> list[Place]:
        """Return none."""
        return []

    def namespaces(self) -> list[str]:
        """Return where it writes, that of its source first."""
        return list(dict.fromkeys([self.src.ns, *(one.place.ns for one in self.dst)]))

    @classmethod
    def named(cls, raw: Any) -> Iterator[NamedQueue]:
        """Yield its source and its destinations, whose namespace is that of the source by default."""
        yield NamedQueue(("src",), inside(raw, "src"), needed=True)
        to = inside(raw, "dst")
        for number, one in enumerate(to if isinstance(to, list) else ()):
            yield NamedQueue(("dst", number), one, needed=False)

    def filled(self, name: str, only: str, errors: Place | None) -> Self:
        """Return it with its namespaces."""
        src = replace(self.src, ns=self.src.ns or only)
        to: Sequence[Any] = self.dst
        facts: dict[str, Any] = {"dst": [replace(one, ns=one.ns or src.ns) for one in to]}
        return replace(self, src=src, **facts)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        """Yield nothing."""
        yield from ()

    def refused_options(self) -> Mapping[str, str]:
        """Return all that a step may set itself."""
        return OWN_OPTIONS

    def taken(self) -> Iterator[Intake]:
        """Yield its source."""
        yield Intake(("src",), self.src, shared=False)

    @property
    def kind(self) -> str:
        """The noun."""
        return self.noun

    @property
    def title(self) -> str:
        """The noun."""
        return self.noun

    def arrows_in(self) -> list[Arrow]:
        """Return one from its source."""
        return [Arrow(self.src, "in")]

    def arrows_out(self) -> list[Arrow]:
        """Return one to each destination."""
        return [Arrow(one.place, "out") for one in self.dst]

    def facts(self, cyclic: Collection[Place]) -> dict[str, Any]:
        """Return its source and destinations, and which of these are on a cycle."""
        dst = [{"queue": str(one), "cycle": one in cyclic} for one in self.written]
        return {"src": str(self.src), "dst": dst}
