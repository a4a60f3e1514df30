"""Whether a world that has come to rest is as it must be: what was pushed, what came out, what is left behind."""

from __future__ import annotations

from collections import Counter, defaultdict

from spark_queue.messages.message import messages
from spark_queue.stores.types import Condition
from tests.chaos.iterating import judge_tries
from tests.chaos.world import World


def judge(world: World):
    """Report what is wrong with a world that has come to rest, and count."""
    result = world.result
    wrong = result.wrong
    begun, acknowledged = _pushed(world.producers)
    # The history has dead letters, too, which are in their own queue.
    commits = [Condition("outcome", "=", "commit")]
    committed = [one for store in world.outputs for one in _all(store, "b", "history", commits)]
    dead = [one for store in world.outputs for one in _all(store, "b.dead")]
    times = Counter(one.headers["name"] for one in [*committed, *dead])
    _report(wrong, "lost", acknowledged - times.keys())
    if not world.kind.repeats:
        _report(wrong, "came out twice", {name for name, n in times.items() if n > 1})
    _report(wrong, "invented", times.keys() - begun)
    _report(wrong, "has another payload", {one.headers["name"] for one in committed if not _doubled(one)})
    _report(wrong, "dead without a reason", {one.headers["name"] for one in dead if not one.headers.get("x-error")})
    if world.kind.graph:
        _judge_copies(world, set(times))
    result.acknowledged, result.maybe = len(acknowledged), len(begun - acknowledged)
    result.delivered, result.dead = times.total(), len(dead)
    _judge_consumers(world, {one.id for one in committed})
    if world.kind.ahead:
        judge_tries(world)
    _judge_the_rest(world)


def _judge_copies(world, delivered):
    """Check that the other destinations of a graph have each message of B that they should have, once."""

    def number(name):
        return int(name.rpartition("-")[2])

    for queue, every in (
        ("b.odd", {one for one in delivered if number(one) % 2}),
        ("b.tens", {one for one in delivered if number(one) % 10 == 0}),
    ):
        times = Counter(one.headers["name"] for one in _all(world.store_b, queue))
        _report(world.result.wrong, f"lost for {queue}", every - times.keys())
        _report(world.result.wrong, f"came out twice in {queue}", {name for name, n in times.items() if n > 1})
        _report(world.result.wrong, f"does not belong into {queue}", times.keys() - every)


def count(world: World):
    """Count what the query went through, also where the world did not come to rest."""
    result = world.result
    starts = [one for life in world.driver.logs().values() for one in life if one["did"] == "start"]
    again = [one for one in starts if one["offsets"] > one["commits"]]
    result.replayed = len({one["offsets"] for one in again})
    result.skipped = len({one["offsets"] for one in again if one["offsets"] == one["ledger"]})
    result.queries, result.drivers = len(starts), world.driver.lives
    result.batches += world.last("commits") + 1


def _pushed(producers):
    """The names of messages of which a push was begun, and of those of which it was acknowledged."""
    begun, acknowledged = set(), set()
    for producer in producers:
        for life, facts in producer.logs().items():
            for one in facts:
                if one["did"] in ("begin", "push"):
                    names = {f"{life}-{n}" for n in range(one["first"], one["last"] + 1)}
                    (acknowledged if one["did"] == "push" else begun).update(names)
    return begun, acknowledged


def _all(store, queue, view="messages", where=()):
    for batch in store.peek(queue, where, view=view):
        yield from messages(batch)


def _doubled(message):
    """Whether the transformation of this message gives its payload."""
    producer, _, n = message.headers["name"].rpartition("-")
    return message.payload == {"producer": producer, "n": int(n), "double": 2 * int(n)}


def _judge_consumers(world, committed):
    """Nothing is committed twice, or comes again after its commit, or is committed by one who has lost it.

    An act is known by the times before which it had not begun and after which it had ended.
    """
    wrong = world.result.wrong
    takes, commits = defaultdict(list), defaultdict(list)
    for consumer in [*world.consumers, *world.rivals]:
        for life, facts in consumer.logs().items():
            for act in facts:
                for id in act["ids"] if act["did"] != "late" else ():
                    (commits if act["did"] == "commit" else takes)[id].append((life, act))
    _report(wrong, "commit was acknowledged, but it is not in the history", commits.keys() - committed)
    _report(wrong, "committed twice", {id for id, acts in commits.items() if len(acts) > 1})
    again, overtaken = set(), set()
    for id, [(life, commit), *_] in commits.items():
        own = [act for other, act in takes[id] if other == life and act["ended"] <= commit["begun"]][-1]
        for other, act in takes[id]:
            if act["begun"] > commit["ended"]:
                again.add(id)
            if other != life and own["ended"] < act["begun"] and act["ended"] < commit["begun"]:
                overtaken.add(id)
    _report(wrong, "came again after its commit", again)
    _report(wrong, "committed by one who had lost it to another", overtaken)


def _judge_the_rest(world):
    """Nothing is left behind: no message, no reservation, no stage; and all logs end with the same batch."""
    wrong = world.result.wrong
    for queue, letters in world.dead_letters().items():
        if letters:
            wrong.append(f"dead letters of {queue}, though no task has failed: {letters}")
    for store, queue in [*world.inputs, (world.store_a, "a.tens"), *((store, "b") for store in world.outputs)]:
        if (sizes := store.sizes(queue)).total:
            wrong.append(f"left in {queue}: {sizes}")
        if held := store.reservations(queue):
            wrong.append(f"held in {queue}: {held}")
        if staged := store.staged():
            wrong.append(f"staged: {staged}")
    ends = {"offsets": world.last("offsets"), "commits": world.last("commits"), "ledger": world.decided()}
    ends |= {f"ledger {number}": batch for number, batch in enumerate(world.ledgers()) if world.kind.scattered}
    if len(set(ends.values())) > 1:
        wrong.append(f"the last batch is not the same everywhere: {ends}")


def _report(wrong, what, names):
    if names:
        some = ", ".join(sorted(names)[:5])
        wrong.append(f"{what}: {len(names)} messages ({some}{', …' if len(names) > 5 else ''})")
