"""Namespaces and queues: lists, status, pause, and requests that wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from spark_queue.rest.answers import json_response, json_text, text_response
from spark_queue.rest.keuss.kinds import describe_queue
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.looks.contents import Contents, look_at
from spark_queue.rest.looks.queue_metrics import queue_status, queue_statuses
from spark_queue.rest.routes import NamespaceName, QueueName, describe_json, router, viewable
from spark_queue.rest.service import QueueDependency, ServiceDependency
from spark_queue.stores.base import Store

routes = router("keuss-server: queues", strict=False)

#: The status of a queue, for OpenAPI.
QUEUE_STATUS = {
    "type": "object",
    "required": [
        "ns", "queue", "type", "capabilities", "factory", "size", "totalSize", "schedSize", "resvSize", "next_t",
        "next_mature_t", "paused", "stats",
    ],
    "properties": {
        "ns": {"type": "string"},
        "queue": {"type": "string"},
        "type": {"type": "string", "description": "The kind of queue, as keuss names it."},
        "capabilities": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "factory": {"type": "object", "description": "The namespace."},
        "size": {"type": "integer", "description": "Ready messages: due, and not reserved."},
        "totalSize": {"type": "integer"},
        "schedSize": {"type": "integer", "description": "Scheduled messages: due later."},
        "resvSize": {"type": "integer", "description": "Reserved messages."},
        "next_t": {
            "type": ["integer", "null"],
            "description": "Milliseconds until a message is ready; 0 or less: now.",
        },
        "next_mature_t": {"type": ["string", "null"], "description": "When a message is ready."},
        "paused": {"type": "boolean"},
        "stats": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}  # fmt: skip

#: The forms of a list of queues, beside an object.
ListForm = Literal["array", "tree"]

#: A flag of keuss-server: given with any value.
Flag = Annotated[str | None, Query(description="Any value.")]


def _status(ns: str, store: Store, queue: str, status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a queue, with the fields of keuss-server."""
    wait = status["next_t"]
    due = None if wait is None else datetime.fromtimestamp(time.time() + wait / 1000, UTC)
    return {"ns": ns, "queue": queue, **describe_queue(ns, store), **status, "next_mature_t": due}


def _statuses(ns: str, store: Store) -> dict[str, Any]:
    return {queue: _status(ns, store, queue, one) for queue, one in queue_statuses(store).items()}


def _as_array(by_namespace: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the list of all queues for a table."""
    return {"data": [one | {"name": queue} for queues in by_namespace.values() for queue, one in queues.items()]}


def _as_tree(by_namespace: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the list of all queues by namespace, for a tree."""
    return [
        {
            "folder": True,
            "expanded": True,
            "title": ns,
            "key": ns,
            "children": [
                {
                    "title": f"{queue}@{ns}",
                    "key": f"{queue}@{ns}",
                    "size": one["size"],
                    "total": one["totalSize"],
                    "next_t": one["next_t"],
                    "stats": one["stats"],
                }
                for queue, one in queues.items()
            ],
        }
        for ns, queues in by_namespace.items()
    ]


@look_at
def _read_statuses(contents: Contents, namespaces: Sequence[str], form: ListForm | None) -> bytes:
    found = {ns: _statuses(ns, contents.stores[ns]) for ns in namespaces}
    if form is None:
        [found_there] = found.values()
        return json_text(found_there)
    return json_text(_as_array(found) if form == "array" else _as_tree(found))


@routes.get("/q", responses={200: describe_json("The names; with `array` or `tree` the queues.", {})})
@lane(Lane.LOOK)
@viewable
async def list_namespaces(
    service: ServiceDependency, array: Flag = None, tree: Flag = None, reload: Flag = None
) -> Response:
    """List the names of the namespaces that this server serves.

    With `array` or `tree`, list the queues of all of them. The list is always current, so `reload`
    changes nothing.
    """
    if array or tree:
        names = list(service.stores)
        return text_response(await service.look(names, _read_statuses, names, "array" if array else "tree"))
    return json_response(list(service.stores))


@routes.get("/q/{ns}", responses={200: describe_json("By queue; with `array` or `tree` a list.", {})})
@lane(Lane.LOOK)
@viewable
async def list_queues(
    ns: NamespaceName, service: ServiceDependency, array: Flag = None, tree: Flag = None
) -> Response:
    """Return the status of all queues of a namespace that hold messages or were used before."""
    service.get_store(ns)
    form: ListForm | None = "array" if array else "tree" if tree else None
    return text_response(await service.look([ns], _read_statuses, [ns], form))


@routes.get("/q/{ns}/{queue}/status", responses={200: describe_json("Sizes and counters.", QUEUE_STATUS)})
@lane(Lane.LOOK)
@viewable
async def status(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Return the numbers of messages in a queue, by state, and counters."""
    return text_response(await service.look([bound.ns], _read_status, bound.ns, bound.queue))


@look_at
def _read_status(contents: Contents, ns: str, queue: str) -> bytes:
    store = contents.stores[ns]
    return json_text(_status(ns, store, queue, queue_status(store, queue)))


@routes.get("/q/{ns}/{queue}/paused", responses={200: describe_json("Whether it is.", {"type": "boolean"})})
@lane(Lane.LOOK)
@viewable
async def paused(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Return whether a queue is paused."""
    return json_response(await service.look((), _read_paused, bound.ns, bound.queue))


@look_at
def _read_paused(contents: Contents, ns: str, queue: str) -> bool:
    return contents.stores[ns].is_paused(queue)


@routes.patch("/q/{ns}/{queue}/pause", status_code=201, response_class=Response)
@lane(Lane.WRITE)
async def pause(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Pause the queue: no client can reserve messages until `resume`, keuss programs included."""
    await service.run_in_thread(bound.store.pause, bound.queue)
    return Response(status_code=201)


@routes.patch("/q/{ns}/{queue}/resume", status_code=201, response_class=Response)
@lane(Lane.WRITE)
async def resume(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Resume the queue."""
    await service.run_in_thread(bound.store.resume, bound.queue)
    return Response(status_code=201)


@routes.get("/q/{ns}/{queue}/consumers", responses={200: describe_json("The requests.", {"type": "array"})})
@lane(Lane.LOCAL)
@viewable
async def consumers(bound: QueueDependency, service: ServiceDependency) -> Response:
    """List the requests that wait for messages of the queue at this server.

    The fields besides `tid`, `since` and `reserve` always have these values: programs of
    keuss-server may read them.
    """
    waiting = service.wait_list.waiters_of(bound.ns, bound.queue)
    constant = {"callback": "set", "cleanup_timeout": "set", "wakeup_timeout": "set"}
    return json_response(
        [{"tid": one.tid, "since": one.since, "reserve": one.reserve, **constant} for one in waiting]
    )


@routes.delete("/q/{ns}/{queue}/consumer/{tid}", response_class=Response)
@lane(Lane.LOCAL)
async def cancel(ns: NamespaceName, queue: QueueName, tid: str, service: ServiceDependency) -> Response:
    """Cancel a waiting request; its answer is 410. One that does not wait is no error."""
    service.get_queue(ns, queue)
    service.wait_list.cancel(ns, queue, tid)
    return Response()
