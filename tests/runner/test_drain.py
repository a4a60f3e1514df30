"""The order in which a drain runs the steps of a graph. Without Spark."""

from __future__ import annotations

import threading

import pytest

from spark_queue.errors import QueueError
from spark_queue.graph.model import Destination, Exchange, Graph, Namespace, Place
from spark_queue.graph.order import StepOrder
from spark_queue.graph.validation import check_graph
from spark_queue.runner.drain import run_in_order


def steps_of(**wires):
    """Return exchanges: `name="src > dst dst"`."""
    exchanges = {}
    for name, text in wires.items():
        src, _, dst = text.partition(" > ")
        exchanges[name] = Exchange(Place(src, "ns"), [Destination(one, ns="ns") for one in dst.split()])
    return check_graph(Graph({"ns": Namespace("sqlite://")}, exchanges)).steps


class World:
    """Queues with messages, and runs that move all messages of a queue to the step's destinations."""

    def __init__(self, steps, broken=(), **messages):
        self.steps, self.broken, self.queues = steps, broken, {f"ns/{one}": n for one, n in messages.items()}
        self.runs, self.side_by_side, self.lock = [], set(), threading.Lock()
        self.at_work = set()

    def source(self, name):
        (source,) = self.steps[name].sources
        return str(source)

    def has_messages(self, name):
        with self.lock:
            return self.queues.get(self.source(name), 0) > 0

    def run(self, name):
        with self.lock:
            self.at_work.add(name)
            self.side_by_side.add(frozenset(self.at_work))
            rows = self.queues.pop(self.source(name), 0)
            self.runs.append((name, rows))
        threading.Event().wait(0.02)  # so that others run beside it
        with self.lock:
            self.at_work.remove(name)
            if name in self.broken:
                raise QueueError(f"{name} is broken")
            written = {str(one) for one in self.steps[name].written_queues}
            for queue in written:
                self.queues[queue] = self.queues.get(queue, 0) + rows
            return written

    def drain(self):
        run_in_order(self.steps, self.has_messages, self.run)


def test_each_step_of_a_diamond_runs_once():
    steps = steps_of(last="d > end", right="c > d", left="b > d", top="a > b c")
    world = World(steps, a=10, d=1, b=1)
    world.drain()
    assert world.runs[0] == ("top", 10) and world.runs[-1] == ("last", 22)
    assert len(world.runs) == 4 and frozenset({"left", "right"}) in world.side_by_side


def test_a_step_does_not_wait_for_steps_that_write_nothing_for_it():
    """It runs while a slow one beside it still works."""
    steps = steps_of(slow="a > b", quick="c > d", after="d > e")
    world = World(steps, a=1, c=1)
    released, run = threading.Event(), world.run

    def held(name):
        if name == "slow":
            assert released.wait(10), "`after` waited for `slow`"
        written = run(name)
        if name == "after":
            released.set()
        return written

    run_in_order(steps, world.has_messages, held)
    assert [name for name, _ in world.runs] == ["quick", "after", "slow"]


def test_a_cycle_runs_until_its_messages_are_gone():
    steps = steps_of(enter="in > one", there="one > two", back="two > one")
    world = World(steps, **{"in": 5})
    hops = iter(range(6))

    def run(name):
        written = world.run(name)
        if name != "enter" and next(hops) == 5:
            world.queues.clear()  # too many hops
        return written

    run_in_order(steps, world.has_messages, run)
    assert [name for name, _ in world.runs] == ["enter", *["there", "back"] * 3]


def test_the_others_go_on_after_a_failure():
    steps = steps_of(first="a > b", broken="b > c", beside="d > e", below="c > f")
    world = World(steps, broken={"broken"}, a=1, d=1, c=3)
    with pytest.raises(QueueError, match="broken is broken"):
        world.drain()
    assert sorted(world.runs) == [("below", 3), ("beside", 1), ("broken", 1), ("first", 1)]


def test_without_messages_nothing_runs():
    world = World(steps_of(one="a > b"))
    world.drain()
    run_in_order({}, world.has_messages, world.run)
    assert world.runs == []


def test_order_of_steps_with_a_cycle_and_a_queue_for_messages_without_a_route():
    steps = steps_of(rest="__no_route__ > kept", two="y > x", one="x > y z", start="in > x", end="z > out")
    order = StepOrder(steps)
    assert order.sort(steps).index("start") < order.sort(steps).index("one") < order.sort(steps).index("end")
    assert order.sort(steps)[-1] == "rest" or order.sort(steps)[-2] == "rest"
    assert order.first({"two", "one", "end"}) in (["two", "one"], ["one", "two"])
    assert order.first(["rest", "end"]) == ["end"], "`end` may have messages without a route"
