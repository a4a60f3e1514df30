"""A dead-letter queue from which the dead letters come back is refused, wherever it is set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_queue import Queue, admin
from spark_queue.errors import GraphError, OptionError
from spark_queue.graph.model import Exchange, Graph, Input, Link, Namespace, Place, Processor
from spark_queue.graph.validation import check_graph
from spark_queue.options.roles import parse_options
from spark_queue.rest.settings import Settings
from spark_queue.runner.dead_letter_cycles import dead_letter_cycle

URL = "sqlite:///q.db"

#: Queues and dead-letter queues that do not go together, with the reason.
REFUSED = {
    "itself": ("orders", "orders", "is 'orders', the queue itself: its messages would fail forever"),
    "each other's": (
        "orders.dead",
        "orders",
        "is 'orders', a queue whose own dead letters come back, to 'orders.dead'",
    ),
}
ACCEPTED = [("orders", None), ("orders", "failed"), ("orders.dead", None), ("orders.dead", "failed"), ("x", "X")]


@pytest.mark.parametrize(("queue", "dead", "why"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize(("role", "more"), [("stream", {}), ("push", {}), ("settle", {"consumer": "etl"})])
def test_options_refuse_it(role, more, queue, dead, why):
    with pytest.raises(OptionError, match="option 'deadLetterQueue'") as caught:
        parse_options({"url": URL, "queue": queue, "DEADLETTERQUEUE": dead, **more}, role)
    assert why in str(caught.value) and caught.value.facts["option"] == "deadLetterQueue"


@pytest.mark.parametrize(("queue", "dead"), ACCEPTED)
def test_others_are_accepted(queue, dead, tmp_path):
    raw = {"url": URL, "queue": queue} | ({} if dead is None else {"deadLetterQueue": dead})
    assert parse_options(raw, "stream").dead_letters.queue_of(queue) == (dead or f"{queue}.dead")
    with Queue(f"sqlite:///{tmp_path}/q.db", queue, dead_letter_queue=dead, max_tries=1) as client:
        client.push(1)
        client.rollback(*client.reserve())
        assert client.sizes().dead == 1 and client.dead_name == (dead or f"{queue}.dead")


@pytest.mark.parametrize("dead", ["prices", "orders"])
def test_it_is_none_of_several_inputs(dead):
    inputs = {"order": {"queue": "orders"}, "price": {"queue": "prices"}}
    with pytest.raises(OptionError, match=f"deadLetterQueue' is '{dead}', the queue itself"):
        parse_options({"url": URL, "inputs": json.dumps(inputs), "deadLetterQueue": dead}, "stream")


@pytest.mark.parametrize(("queue", "dead", "why"), REFUSED.values(), ids=REFUSED)
def test_the_client_and_the_commands_refuse_it(queue, dead, why, tmp_path):
    url = f"sqlite:///{tmp_path}/q.db"
    with pytest.raises(OptionError, match="dead_letter_queue is"):
        Queue(url, queue, dead_letter_queue=dead)
    with Queue(url, queue) as client:
        client.push(1)
        held = admin.consume.reserve(url, queue)
        with pytest.raises(OptionError) as caught:
            admin.consume.rollback(url, queue, held.tag, max_tries=1, dead=dead)
        assert str(caught.value).startswith("--dead (dead=…) is") and why in str(caught.value)
        assert client.sizes().reserved == 1, "nothing was changed"


def test_a_dead_letter_queue_that_queues_share_may_be_read_too(tmp_path):
    namespaces = {"a": Namespace(f"sqlite:///{tmp_path}/q.db", {"deadLetterQueue": "failed", "maxTries": "1"})}
    options = Settings(graph=Graph(namespaces)).options["a"]
    dead_of = options.dead_letters.queue_of
    assert (dead_of("orders"), dead_of("failed")) == ("failed", "failed.dead")
    assert dead_of("failed.dead") == "failed.dead.dead", "else its dead letters would come back"


# --- graphs ---------------------------------------------------------------------------------------


def graph_of(*steps, urls=(URL, URL)):
    """Return a checked graph of steps, with two namespaces."""
    namespaces = {name: Namespace(url) for name, url in zip("ab", urls, strict=True)}
    found = {"exchanges": {}, "links": {}, "processors": {}}
    for number, step in enumerate(steps):
        found[step.section][f"s{number}"] = step
    return check_graph(Graph(namespaces, **found))


def reading(kind, queue, **options):
    """Return a step of this kind that reads a queue."""
    place = Place(*reversed(queue.split("/")))
    if kind is Processor:
        return Processor("m:f", in_={"one": Input(place.queue, place.ns)}, out={}, options=options)
    return kind(place, [], options=options) if kind is Exchange else Link(place, [], options=options)


@pytest.mark.parametrize("kind", [Exchange, Link, Processor])
def test_steps_whose_dead_letters_come_back_are_found(kind):
    graph = graph_of(
        reading(kind, "a/x", deadLetterQueue="y"),
        reading(kind, "a/y", deadletterqueue="z"),
        reading(kind, "a/z", deadLetterQueue="x"),
        reading(kind, "a/other", deadLetterQueue="x"),
        reading(kind, "a/other.dead"),
    )
    cycles = [dead_letter_cycle(graph, step) for step in graph.steps.values()]
    assert cycles == [["x", "y", "z", "x"], ["y", "z", "x", "y"], ["z", "x", "y", "z"], [], []]


@pytest.mark.parametrize(
    ("url", "other", "is_same"),
    [
        (URL, f"sqlite:///{Path.cwd()}/q.db", True),
        (URL, "sqlite:///other.db", False),
        ("redis://host/0", "redis://u:p@host/0?ns=N", True),
        ("redis://host/0", "redis://host/1", False),
        (
            "mongodb://host/db?layout=pl-mongo&pipeline=x",
            "mongodb://u:p@host/db?pipeline=x&layout=pl-mongo&w=1",
            True,
        ),
        ("mongodb://host/db?layout=pl-mongo&pipeline=x", "mongodb://host/db?layout=pl-mongo", False),
    ],
)
def test_namespaces_of_one_database_share_their_queues(url, other, is_same):
    steps = reading(Exchange, "a/x", deadLetterQueue="y"), reading(Exchange, "b/y", deadLetterQueue="x")
    graph = graph_of(*steps, urls=(url, other))
    found = [dead_letter_cycle(graph, step) for step in graph.steps.values()]
    assert found == ([["x", "y", "x"], ["y", "x", "y"]] if is_same else [[], []])


def test_an_error_queue_is_no_input():
    def graph(own, errors=None):
        step = Processor("m:f", in_={"one": Input("in", "a")}, out={}, rows=True, errors=own)
        return check_graph(Graph({"a": Namespace(URL)}, processors={"p": step}, errors=errors))

    for errors in (Place("in", "a"), Place("in")):
        with pytest.raises(GraphError, match="errors: it is the input 'one': what fails would come back forever"):
            graph(errors)
    assert graph(Place("errors")).processors["p"].errors == Place("errors", "a")
    assert graph(None, errors=Place("in", "a")).processors["p"].errors is None
    assert graph(None, errors=Place("errors", "a")).processors["p"].errors == Place("errors", "a")
