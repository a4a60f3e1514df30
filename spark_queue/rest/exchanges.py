"""Exchanges, in the form of keuss-server: their declaration, their owner, and counters.

`jobs/exchange.py` or a notebook runs them. The server shows them; it cannot start or stop one.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from spark_queue.errors import did_you_mean
from spark_queue.graph.parts import Place
from spark_queue.graph.selector_words import selector_text
from spark_queue.graph.step import Step
from spark_queue.options.values import AUTO
from spark_queue.rest.answers import json_response
from spark_queue.rest.errors import NotFound
from spark_queue.rest.routes import describe_json, router, viewable
from spark_queue.rest.service import Service, ServiceDependency
from spark_queue.runner.traffic import load_traffic
from spark_queue.stores.services.owner import live_owner

routes = router("exchanges", strict=False)


def _describe(name: str, step: Step) -> dict[str, Any]:
    """Return the declaration of a step in the graph, for JSON."""

    def queue(place: Place) -> dict[str, str]:
        return {"ns": place.ns, "q": place.queue}

    return {
        "name": name,
        "kind": step.kind,
        "src": queue(step.src) if step.src else None,
        "sources": [queue(one) for one in step.sources],
        "dst": [
            queue(to.place) | {"selector": selector_text(getattr(to, "selector", None)) or None} for to in step.dst
        ],
        "delivery": step.guarantee,
        "consumer": {
            "parallel": step.consumer.parallel,
            "wsize": step.consumer.wsize or AUTO,
            "reserve": step.consumer.reserve,
        },
    }


def _describe_all(service: Service) -> dict[str, dict[str, Any]]:
    steps = service.settings.graph.steps
    found = {name: _describe(name, step) for name, step in steps.items()}
    for ns in dict.fromkeys(step.src.ns for step in steps.values() if step.src):
        store = service.stores[ns]
        traffic = load_traffic(store.url)
        for name, step in steps.items():
            if step.src and step.src.ns == ns:
                owner = live_owner(store, step.src.queue, name)
                found[name] |= {"running": owner is not None, "owner": str(owner) if owner else None}
                found[name]["stats"] = vars(traffic[name]) if name in traffic else None
    return found


@routes.get("/x", responses={200: describe_json("Exchanges, links and processors, by name.")})
@viewable
async def exchanges(service: ServiceDependency) -> Response:
    """List the exchanges, links and processors of the graph."""
    return json_response(await service.run_in_thread(_describe_all, service))


@routes.get("/x/{name}", responses={200: describe_json("An exchange, link or processor.")})
@viewable
async def exchange(name: str, service: ServiceDependency) -> Response:
    """Return an exchange, link or processor of the graph.

    `owner` is the process that runs it, and `stats` has counters.
    """
    steps = service.settings.graph.steps
    if name not in steps:
        raise NotFound(f"no such exchange [{name}]{did_you_mean(name, steps)}", exchange=name)
    return json_response((await service.run_in_thread(_describe_all, service))[name])
