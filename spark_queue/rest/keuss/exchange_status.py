"""The status of exchanges, in the form of keuss-server, with fields of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from spark_queue.errors import plural
from spark_queue.graph.parts import Place
from spark_queue.graph.selector_words import selector_text
from spark_queue.graph.step import Step
from spark_queue.options.values import AUTO
from spark_queue.runner.declared import KnownStep
from spark_queue.runner.runs import load_run
from spark_queue.runner.selector_times import SelectorTimes, load_times
from spark_queue.runner.traffic import Traffic, traffic_of
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import Owner, consumers
from spark_queue.stores.types import Reservation

#: The consumer `name/epoch` and its live process, by queue and name.
LiveConsumers = dict[tuple[str, str], tuple[str, Owner]]

#: The `wsize` of keuss-server if a declaration has none.
KEUSS_WSIZE = 1000


def exchange_statuses(known: Mapping[str, KnownStep], stores: Mapping[str, Store]) -> dict[str, dict[str, Any]]:
    """Return the status of each of these steps, by name. Raises `StoreError`."""
    namespaces = dict.fromkeys(one.ns for one in known.values())
    live = {ns: _live_consumers(stores[ns]) for ns in namespaces}
    return {name: _status(one, stores, live[one.ns]) for name, one in known.items()}


def _live_consumers(store: Store) -> LiveConsumers:
    found = [(queue, consumer, owner) for queue, consumer, owner in consumers(store) if owner is not None]
    return {(queue, consumer.partition("/")[0]): (consumer, owner) for queue, consumer, owner in found}


def _status(one: KnownStep, stores: Mapping[str, Store], live: LiveConsumers) -> dict[str, Any]:
    store = stores[one.ns]
    now, run, times = store.now(), load_run(store, one.key), load_times(store, one.name)
    sources = one.step.sources if one.step else []
    lives = [live[key] for place in sources if (key := (place.queue, one.name)) in live]
    consumer, owner = lives[0] if lives else (one.name, None)
    server = run.owner if run and run.owner and run.owner.is_alive(now) else None
    running = owner is not None or server is not None
    held = {place.queue: stores[place.ns].reservations(place.queue, one.name) for place in sources}
    stuck = _describe_stuck(held, consumer) if owner else None
    return {
        "name": one.name,
        **(_declaration(one.step) if one.step else {}),
        "cid": consumer,
        "pending_acks": _describe_reservations(chain.from_iterable(held.values())),
        "pending_tids": {},
        "stopped": one.stopped,
        "declared": one.declared,
        "running": running,
        "state": run.state if run and server else "running" if running else "stopped",
        "owner": str(owner or server) if running else None,
        "server": str(server) if server else None,
        "restarts": run.restarts if run else 0,
        "error": one.mistakes or (run.error if run else None) or stuck,
        **_counts(traffic_of(store, one.name), now),
        "evaluation": describe_times(times) if times else None,
    }


def _declaration(step: Step) -> dict[str, Any]:
    """Return the declaration of a step, for JSON."""
    settings = step.consumer
    opts = {"parallel": settings.parallel, "wsize": settings.wsize, "reserve": settings.reserve}
    return {
        "kind": step.kind,
        "src": _queue(step.src) if step.src else None,
        "sources": [_queue(one) for one in step.sources],
        "dst": [
            # keuss-server has names and selector here; its newest code has the names in `dst`.
            {
                **_queue(to.place),
                "selector": selector_text(getattr(to, "selector", None)) or None,
                "dst": _queue(to.place),
            }
            for to in step.dst
        ],
        "delivery": step.guarantee,
        "consumer": {"parallel": settings.parallel, "wsize": settings.wsize or AUTO, "reserve": settings.reserve},
        "opts": {key: value for key, value in opts.items() if value},
        "wsize": settings.wsize or KEUSS_WSIZE,
    }


def describe_times(times: SelectorTimes) -> dict[str, Any]:
    """Return the times of selectors (µs for one message), by destination, for JSON."""
    return {**asdict(times), "at": datetime.fromtimestamp(times.at / 1000, UTC)}


def _queue(place: Place) -> dict[str, str]:
    return {"ns": place.ns, "q": place.queue}


def _describe_reservations(held: Iterable[Reservation]) -> dict[str, dict[str, Any]]:
    """Return the reservations of a step: the number of messages, and when the lease ends.

    A step with several sources reserves under the same tag in each.
    """
    found: dict[str, dict[str, Any]] = {}
    for one in held:
        until = None if one.until is None else datetime.fromtimestamp(one.until / 1000, UTC)
        found.setdefault(one.tag, {"messages": 0, "until": until})["messages"] += one.rows
    return found


def _describe_stuck(held: Mapping[str, Sequence[Reservation]], running: str) -> str | None:
    """Return a sentence about reservations without end that the `running` consumer did not make.

    They are of another checkpoint of the step, so the step does not settle them. `held`: by queue.
    `None`: no such.
    """
    rows: Counter[tuple[str, str]] = Counter()
    for queue, reservations in held.items():
        for one in reservations:
            consumer = "/".join(one.tag.split("/")[:2])
            if one.until is None and consumer != running:
                rows[queue, consumer] += one.rows
    if not rows:
        return None
    queues = " and ".join(dict.fromkeys(repr(queue) for queue, _ in rows))
    steps = "; ".join(f"spark-queue recover URL {queue} {consumer} --sink URL" for queue, consumer in rows)
    return (
        f"{plural(rows.total(), 'message')} of queue {queues} stay reserved: this exchange has reserved them with "
        f"another checkpoint, and runs with a new one. Settle them with: {steps}"
    )


def _counts(traffic: Traffic | None, now: int) -> dict[str, Any]:
    """Return the counts of a step, the mean duration of its hops (ms), and its rates."""
    if traffic is None:
        return {"stats": None, "hops": {}, "rates": Traffic().rates(now)}
    shown = {
        name: value for name, value in vars(traffic).items() if name not in ("hops", "hop_milliseconds", "recent")
    }
    messages: dict[str, int] = {}
    for key, count in traffic.hops.items():
        outcome = key.partition("/")[0]
        messages[outcome] = messages.get(outcome, 0) + count
    hops = {
        outcome: {"messages": count, "ms": round(traffic.hop_milliseconds[outcome] / count, 1)}
        for outcome, count in messages.items()
    }
    return {"stats": shown, "hops": hops, "rates": traffic.rates(now)}
