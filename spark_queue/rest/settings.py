"""The settings of a server, checked before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.events.config import Declarations
from spark_queue.events.executors import Executors
from spark_queue.graph.model import Graph, Place
from spark_queue.graph.validation import check_graph
from spark_queue.options.roles import parse_options
from spark_queue.options.stream import StreamOptions
from spark_queue.rest.guard.credentials import Credentials
from spark_queue.rest.looks.queue_metrics import MAX_QUEUES
from spark_queue.stores import resolve_options

#: The environment variable with NAME=URL of stores, separated by blanks.
URLS_VARIABLE = "SPARK_QUEUE_REST_URLS"


#: Stands for the queue, of which each request names its own.
ANY_QUEUE = "any queue of the namespace"


@dataclass(frozen=True)
class Limits:
    """Limits of one request: bytes of its body, messages, and ms of waiting."""

    body: int = 16 << 20
    messages: int = 10_000
    wait: int = 600_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server. It serves the namespaces and exchanges of a graph.

    `events` names a queue of events to serve too (`ns/queue`); `declared` has its executors and
    heartbeats. With `checkpoint_root`, a folder that all servers of the graph share, it also runs
    the graph in a Spark session. With `open_metrics`, `/metrics` needs no credentials;
    `metrics_queues` queues have their names there, the others are summed. The options
    of a namespace apply as in exchanges that read there: `reserveTimeout`, `maxTries`,
    `deadLetterQueue`, `history`. Raises `OptionError` or `GraphError` for invalid settings;
    connects to nothing.
    """

    graph: Graph
    credentials: Credentials = field(default_factory=Credentials)
    open_metrics: bool = False
    limits: Limits = Limits()
    metrics_queues: int = MAX_QUEUES
    events: str | None = None
    checkpoint_root: str | None = None
    declared: Declarations = field(default_factory=Declarations)
    options: Mapping[str, StreamOptions] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", check_graph(self.graph))
        if not self.graph.namespaces:
            raise OptionError(
                f"there is nothing to serve: give --graph FILE or --url NAME=URL (or ${URLS_VARIABLE})", option="url"
            )
        options = {}
        for name, one in self.graph.namespaces.items():
            raw = {**one.options, "url": one.url, "queue": ANY_QUEUE}
            try:
                options[name] = resolve_options(parse_options(raw, "stream"))
            except OptionError as error:
                raise OptionError(f"namespace {name!r}: {error}", **error.facts) from None
        object.__setattr__(self, "options", options)

        self.place_of_events()
        Executors(self.declared.executors).check()

    def place_of_events(self) -> Place | None:
        """Return the queue of events, if there is one. Raises `OptionError` if it is invalid."""
        if self.events is None:
            return None
        ns, slash, queue = self.events.partition("/")
        if not slash or not queue:
            raise OptionError(f"--events {self.events!r} must be NAMESPACE/QUEUE", option="events")
        if ns not in self.options:
            hint = did_you_mean(ns, self.options)
            raise OptionError(f"--events {self.events!r}: there is no namespace {ns!r}{hint}", option="events")
        return Place(queue, ns)
