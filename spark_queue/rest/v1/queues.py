"""Lists and sizes of queues, and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from spark_queue.admin.sizes import COUNTERS, load_summaries
from spark_queue.errors import OptionError
from spark_queue.rest.answers import json_response, json_text, text_response
from spark_queue.rest.bound_queue import BoundQueue
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.looks.contents import Contents, look_at
from spark_queue.rest.routes import describe_json, router, viewable
from spark_queue.rest.service import QueueDependency, Service, ServiceDependency
from spark_queue.stores.base import Store
from spark_queue.stores.types import COUNT_LIMIT

routes = router("queues")

SIZES_SCHEMA = {
    "type": "object",
    "required": ["ns", "queue", "ready", "scheduled", "reserved", "dead", "retained", "oldest", "paused", "capped"],
    "properties": {
        "ns": {"type": "string"},
        "queue": {"type": "string"},
        "ready": {"type": "integer"},
        "scheduled": {"type": "integer", "description": "Due later."},
        "reserved": {"type": "integer"},
        "dead": {"type": "integer", "description": "Messages of the queue with the same name and `.dead`."},
        "retained": {"type": "integer", "description": "Messages that a log retains."},
        "oldest": {"type": ["number", "null"], "description": "Seconds since the first message became ready."},
        "paused": {"type": "boolean"},
        "capped": {
            "type": "array", "items": {"type": "string"},
            "description": f"The numbers that are lower bounds: counting ended at {COUNT_LIMIT:,}.",
        },
    },
}  # fmt: skip

Exact = Annotated[
    bool, Query(description=f"Count all messages; otherwise, counting a state ends at {COUNT_LIMIT:,}.")
]


def _sizes_of(ns: str, store: Store, queues: Sequence[str], exact: bool) -> list[dict[str, Any]]:
    return [{"ns": ns, **asdict(one)} for one in load_summaries(store, queues, None if exact else COUNT_LIMIT)]


@routes.get("/v1/queues", responses={200: describe_json("`queues`, and `after` if there are more.")})
@lane(Lane.LOOK)
@viewable
async def list_queues(
    service: ServiceDependency,
    ns: Annotated[str | None, Query(description="Only the queues of this namespace.", max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Return at most this many queues.")] = 100,
    after: Annotated[
        str | None, Query(description="Begin after this queue: the `after` of the last answer.", max_length=500)
    ] = None,
    exact: Exact = False,
) -> Response:
    """List queues that hold messages or were used before, with their sizes."""
    namespaces = sorted(service.stores) if ns is None else [ns]
    for name in namespaces:
        service.get_store(name)
    return text_response(await service.look(namespaces, _read_list, namespaces, _parse_after(after), limit, exact))


@look_at
def _read_list(
    contents: Contents, namespaces: Sequence[str], start: tuple[str, str], limit: int, exact: bool
) -> bytes:
    stores = {name: contents.stores[name] for name in namespaces}
    places = ((name, queue) for name, store in stores.items() for queue in store.queues())
    page = list(islice((place for place in places if place > start), limit + 1))
    queues: dict[str, list[str]] = {}
    for name, queue in page[:limit]:
        queues.setdefault(name, []).append(queue)
    found = [one for name, some in queues.items() for one in _sizes_of(name, stores[name], some, exact)]
    return json_text({"queues": found, "after": "/".join(page[limit - 1]) if len(page) > limit else None})


def _parse_after(after: str | None) -> tuple[str, str]:
    if after is None:
        return "", ""
    ns, slash, queue = after.partition("/")
    if not slash:
        raise OptionError(
            f"parameter 'after' is {after[:60]!r} but must be the 'after' of an answer: NAMESPACE/QUEUE",
            option="after",
        )
    return ns, queue


@routes.get("/v1/queues/{ns}/{queue}", responses={200: describe_json("Sizes and `counters`.", SIZES_SCHEMA)})
@lane(Lane.LOOK)
@viewable
async def get_queue(bound: QueueDependency, service: ServiceDependency, exact: Exact = False) -> Response:
    """Return the sizes of a queue, and how many messages all programs have pushed and settled."""
    return text_response(await service.look([bound.ns], _read_queue, bound.ns, bound.queue, exact))


@look_at
def _read_queue(contents: Contents, ns: str, queue: str, exact: bool) -> bytes:
    store = contents.stores[ns]
    counted = store.statistics(queue)
    counters = {name: getattr(counted, name) for name in COUNTERS}
    (found,) = _sizes_of(ns, store, [queue], exact)
    return json_text({**found, "counters": counters})


@routes.post("/v1/queues/{ns}/{queue}/pause", responses={200: describe_json("`paused`.")})
@lane(Lane.WRITE)
async def pause(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Pause the queue: no client can reserve messages until `resume`."""
    return await _set_paused(bound, service, True)


@routes.post("/v1/queues/{ns}/{queue}/resume", responses={200: describe_json("`paused`.")})
@lane(Lane.WRITE)
async def resume(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Resume the queue."""
    return await _set_paused(bound, service, False)


async def _set_paused(bound: BoundQueue, service: Service, paused: bool) -> Response:
    await service.run_in_thread(bound.store.pause if paused else bound.store.resume, bound.queue)
    return json_response({"paused": paused})
