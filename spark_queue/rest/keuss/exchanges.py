"""Exchanges: list them, and create, start, stop and delete them at run time.

What callers declare is kept in the database of the source. It runs in the servers that have a Spark
session (`--run`): see `runner/shared_graph.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Path, Request
from starlette.responses import Response

from spark_queue.errors import GraphError, did_you_mean
from spark_queue.graph.exchange import Exchange
from spark_queue.graph.parts import get_field, parse_place
from spark_queue.messages.json_text import dump_json
from spark_queue.options.masking import mask_if_url
from spark_queue.rest.answers import json_response, json_text, text_response
from spark_queue.rest.errors import Conflict, NotFound, TooLarge
from spark_queue.rest.keuss.exchange_status import describe_times, exchange_statuses
from spark_queue.rest.keuss.queues import Flag
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.looks.contents import Contents, look_at
from spark_queue.rest.routes import describe_body, describe_json, router, viewable
from spark_queue.rest.service import Service, ServiceDependency
from spark_queue.rest.v1.fields import read_json
from spark_queue.runner.declared import KnownStep, parse_declaration
from spark_queue.runner.selector_times import SelectorTimes, delete_times
from spark_queue.runner.traffic import reset_traffic

routes = router("keuss-server: exchanges", strict=False)

Handler = TypeVar("Handler", bound=Callable[..., Any])

ExchangeName = Annotated[str, Path(description="The name of an exchange, a link or a processor.", max_length=200)]

#: Most bytes of a declaration: all servers read all declarations, again and again.
MAX_DECLARATION = 1 << 18

#: The body of a declaration, for OpenAPI.
DECLARATION_SCHEMA = {
    "type": "object",
    "required": ["src", "dst"],
    "properties": {
        "src": {"type": ["object", "string"], "description": "`{ns, queue}`, or `ns/queue`."},
        "dst": {
            "type": "array",
            "description": "Queues; each may have a `selector` in Spark SQL, and `set`.",
            "items": {"type": ["object", "string"]},
        },
        "consumer": {"type": "object", "description": "`parallel`, `wsize`, `reserve`."},
    },
}

ACCEPTED: dict[int | str, dict[str, Any]] = {201: {"description": "Done. Its effect may come a second later."}}


def put_or_post(path: str, verb: str, **description: Any) -> Callable[[Handler], Handler]:
    """Return a decorator of a handler of both methods, as in keuss-server."""

    def decorate(handler: Handler) -> Handler:
        for method in ("PUT", "POST"):
            routes.add_api_route(
                path, handler, methods=[method], status_code=201, response_class=Response, responses=ACCEPTED,
                operation_id=f"{method.lower()}_{verb}_exchange", **description,
            )  # fmt: skip
        return handler

    return decorate


def _find(service: Service, name: str) -> KnownStep:
    known = service.declared.load()
    if name not in known:
        raise NotFound(f"exchange {name} does not exist{did_you_mean(name, known)}", exchange=name)
    return known[name]


@routes.get("/x", responses={200: describe_json("Exchanges, links and processors, by name.")})
@lane(Lane.LOOK)
@viewable
async def exchanges(service: ServiceDependency, array: Flag = None, reload: Flag = None) -> Response:
    """List the exchanges, links and processors: those of the graph, and those created over HTTP.

    With `array`, the answer has them in the list `data`. It is always current, so `reload` changes
    nothing.
    """
    return text_response(await service.look((), _read_all, bool(array)))


@look_at
def _read_all(contents: Contents, array: bool) -> bytes:
    found = exchange_statuses(contents.declared.load(), contents.stores)
    return json_text({"data": [{"id": name, **one} for name, one in found.items()]} if array else found)


@routes.get("/x/{name}", responses={200: describe_json("An exchange, link or processor.")})
@lane(Lane.LOOK)
@viewable
async def exchange(name: ExchangeName, service: ServiceDependency) -> Response:
    """Return the status of an exchange, link or processor.

    `owner` is the process that reads its messages, and `server` the one that runs its query.
    `error` is its last failure. `stats` has counts, `hops` the mean duration (ms) by outcome, and
    `rates` the messages per second in the last minute.
    """
    return text_response(await service.look((), _read_one, name))


@look_at
def _read_one(contents: Contents, name: str) -> bytes:
    known = contents.declared.load()
    if name not in known:
        raise NotFound(f"no such exchange [{name}]{did_you_mean(name, known)}", exchange=name)
    return json_text(exchange_statuses({name: known[name]}, contents.stores)[name])


@put_or_post(
    "/x/{name}",
    "create",
    openapi_extra=describe_body("The exchange, as in a graph file.", "application/json", schema=DECLARATION_SCHEMA),
)
@lane(Lane.EXECUTE)
async def create(name: ExchangeName, request: Request, service: ServiceDependency) -> Response:
    """Create an exchange, and start it unless it has `disable`. Restarts of the server keep it."""
    declaration = await read_json(request, service)
    await service.run_in_thread(_create, service, name, declaration)
    return Response(status_code=201)


def _create(service: Service, name: str, declaration: Any) -> None:
    shared = service.shared_graph()
    if name in service.declared.load():
        raise Conflict(f"exchange {name} already exists", exchange=name)
    if not isinstance(declaration, dict):
        raise GraphError('the body must be a JSON object, such as {"src": "ns/queue", "dst": ["ns/queue"]}')
    if len(dump_json(declaration)) > MAX_DECLARATION:
        raise TooLarge(f"the declaration is larger than {MAX_DECLARATION:,} bytes: use fewer destinations")
    ns = get_field(parse_place(declaration.get("src")), "ns")
    if isinstance(ns, str) and ns and ns not in service.stores:
        raise NotFound(f"namespace {mask_if_url(ns)} not defined{did_you_mean(ns, service.stores)}")
    step = parse_declaration(service.settings.graph, name, declaration)
    shared.check(name, step)
    if not service.declared.add(name, step.src.ns, declaration, stopped=step.disable):
        raise Conflict(f"exchange {name} already exists", exchange=name)
    shared.look_now(name)


@routes.delete("/x/{name}", status_code=201, response_class=Response, responses=ACCEPTED)
@lane(Lane.WRITE)
async def delete(name: ExchangeName, service: ServiceDependency) -> Response:
    """Stop and delete an exchange that was created over HTTP. Its queues stay.

    Of its last batch, messages that were copied are committed, and others are free again.
    """
    await service.run_in_thread(_delete, service, name)
    return Response(status_code=201)


def _delete(service: Service, name: str) -> None:
    one = _find(service, name)
    shared = service.shared_graph()
    if not one.declared:
        raise Conflict(
            f"exchange {name} is in the graph file: remove it there, or stop it with PUT /x/{name}/stop",
            exchange=name,
        )
    service.declared.remove(one)
    shared.look_now(name)


@put_or_post("/x/{name}/start", "start")
@lane(Lane.WRITE)
async def start(name: ExchangeName, service: ServiceDependency) -> Response:
    """Start an exchange, link or processor, unless it runs. It stays started after a restart."""
    await service.run_in_thread(_set_stopped, service, name, False)
    return Response(status_code=201)


@put_or_post("/x/{name}/stop", "stop")
@lane(Lane.WRITE)
async def stop(name: ExchangeName, service: ServiceDependency) -> Response:
    """Stop an exchange, link or processor. It stays stopped after a restart."""
    await service.run_in_thread(_set_stopped, service, name, True)
    return Response(status_code=201)


def _set_stopped(service: Service, name: str, stopped: bool) -> None:
    one = _find(service, name)
    shared = service.shared_graph()
    if not service.declared.set_stopped(one, stopped):
        raise NotFound(f"exchange {name} does not exist", exchange=name)
    shared.look_now(name)


@routes.put("/x/{name}/reset", status_code=201, response_class=Response, responses=ACCEPTED)
@lane(Lane.WRITE)
async def reset(name: ExchangeName, service: ServiceDependency) -> Response:
    """Set the counts of an exchange, link or processor to zero, and delete its measured times."""

    def clear() -> None:
        one = _find(service, name)
        reset_traffic(service.stores[one.ns].url, name)
        delete_times(service.stores[one.ns], name)

    await service.run_in_thread(clear)
    return Response(status_code=201)


@routes.put("/x/{name}/measure", status_code=201, responses=ACCEPTED)
@lane(Lane.EXECUTE)
async def measure(name: ExchangeName, service: ServiceDependency) -> Response:
    """Measure how long each selector of an exchange takes, on messages that wait in its queues.

    No message changes. The status of the exchange has the times from then on.
    """

    def run() -> SelectorTimes:
        one = _find(service, name)
        shared = service.shared_graph()
        if not isinstance(one.step, Exchange):
            raise Conflict(f"{name} is no exchange that can run: it has no selectors to measure", exchange=name)
        times = shared.measure(name, one.step)
        if times is None:
            raise Conflict(
                f"the queues of exchange {name} have no messages to measure its selectors on: stop it, push some to "
                f"{one.step.src}, and try again",
                exchange=name,
            )
        return times

    return json_response(describe_times(await service.run_in_thread(run)), 201)
