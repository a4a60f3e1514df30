"""Queues in the form of keuss-server: one message per request, and the status of queues.

A reserved message is settled by its `x-ks-id`, which is a receipt (`receipts.py`) and not the bare
id of keuss. So a late commit cannot remove a message that another consumer has reserved.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from spark_queue.errors import OptionError
from spark_queue.options.masking import mask
from spark_queue.rest.errors import NothingCame, NotThere
from spark_queue.rest.metrics import facts_of, queues_of
from spark_queue.rest.payloads import alone, answer, body_of, headers_of, moment, payload_of, pushed
from spark_queue.rest.receipts import held_by, new_tag
from spark_queue.rest.routes import (
    Delay,
    Handle,
    HeldFor,
    Lease,
    NamespaceName,
    QueueName,
    Reserve,
    Tid,
    Wait,
    body,
    json_answer,
    router,
)
from spark_queue.rest.service import Room, Served, Service, watch
from spark_queue.stores.base import Store

routes = router("queues")

#: The status of a queue, for OpenAPI.
QUEUE_STATUS = {
    "type": "object",
    "required": ["ns", "queue", "size", "totalSize", "schedSize", "resvSize", "next_t", "paused", "stats"],
    "properties": {
        "ns": {"type": "string"},
        "queue": {"type": "string"},
        "size": {"type": "integer", "description": "Ready messages: due, and not reserved."},
        "totalSize": {"type": "integer"},
        "schedSize": {"type": "integer", "description": "Scheduled messages: due later."},
        "resvSize": {"type": "integer", "description": "Reserved messages."},
        "next_t": {
            "type": ["integer", "null"],
            "description": "Milliseconds until a message is ready; 0 or less: now.",
        },
        "paused": {"type": "boolean"},
        "stats": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}

MESSAGE_RESPONSE = {
    "description": "The payload; `x-ks-` headers have the rest of the message.",
    "headers": {
        name: {"description": text, "required": True, "schema": {"type": "string"}}
        for name, text in {
            "x-ks-id": "The handle to settle it with if it is reserved, else its id.",
            "x-ks-message-id": "The id of the message.",
            "x-ks-tries": "The number of failed tries.",
            "x-ks-mature": "When it became ready.",
        }.items()
    },
    "content": {"*/*": {"schema": {}}},
}

TAKEN: dict[int | str, dict[str, Any]] = {
    200: MESSAGE_RESPONSE,
    410: {"description": "The wait was cancelled."},
    504: {"description": "No message is ready, or came in time."},
}
PAYLOAD = body("The payload.", "application/json", "text/plain", "application/octet-stream")


# --- status of queues -----------------------------------------------------------------------------------------------


def _status(ns: str, store: Store, queue: str) -> dict[str, Any]:
    return {"ns": ns, "queue": queue, **facts_of(store, queue)}


def _statuses(ns: str, store: Store) -> dict[str, Any]:
    return {queue: _status(ns, store, queue) for queue in queues_of(store)}


@routes.get("/q", responses={200: json_answer("The namespaces and their stores.")})
async def namespaces(service: Served) -> Response:
    """List the namespaces that this server serves."""
    return answer({ns: {"store": mask(store.url).partition("?")[0]} for ns, store in service.stores.items()})


@routes.get(
    "/q/{ns}", responses={200: json_answer("By queue.", {"type": "object", "additionalProperties": QUEUE_STATUS})}
)
async def queues(ns: NamespaceName, service: Served) -> Response:
    """Return the status of all queues of a namespace that hold messages or were used before."""
    store = service.room(ns, "any").store
    return answer(await service.work(_statuses, ns, store))


@routes.get("/q/{ns}/{queue}/status", responses={200: json_answer("Sizes and counters.", QUEUE_STATUS)})
async def status(ns: NamespaceName, queue: QueueName, service: Served) -> Response:
    """Return the numbers of messages in a queue, by state, and counters."""
    room = service.room(ns, queue)
    return answer(await service.work(_status, ns, room.store, queue))


@routes.get("/q/{ns}/{queue}/paused", responses={200: json_answer("`paused`.")})
async def paused(ns: NamespaceName, queue: QueueName, service: Served) -> Response:
    """Return whether a queue is paused."""
    room = service.room(ns, queue)
    return answer({"paused": await service.work(room.store.paused, queue)})


@routes.patch("/q/{ns}/{queue}/pause", status_code=201, responses={201: json_answer("`paused`.")})
async def pause(ns: NamespaceName, queue: QueueName, service: Served) -> Response:
    """Pause the queue: no client can reserve messages until `resume`, keuss programs included."""
    room = service.room(ns, queue)
    await service.work(room.store.pause, queue)
    return answer({"paused": True}, 201)


@routes.patch("/q/{ns}/{queue}/resume", status_code=201, responses={201: json_answer("`paused`.")})
async def resume(ns: NamespaceName, queue: QueueName, service: Served) -> Response:
    """Resume the queue."""
    room = service.room(ns, queue)
    await service.work(room.store.resume, queue)
    return answer({"paused": False}, 201)


@routes.get("/q/{ns}/{queue}/consumers", responses={200: json_answer("Waiting requests, by `tid`.")})
async def consumers(ns: NamespaceName, queue: QueueName, service: Served) -> Response:
    """List the requests that wait for messages of the queue at this server."""
    service.room(ns, queue)
    waiting = service.lines.waiting(ns, queue)
    return answer({one.tid: {"tid": one.tid, "since": one.since, "reserve": one.reserve} for one in waiting})


@routes.delete("/q/{ns}/{queue}/consumer/{tid}", status_code=204)
async def cancel(ns: NamespaceName, queue: QueueName, tid: str, service: Served) -> Response:
    """Cancel a waiting request; its answer is 410."""
    service.room(ns, queue)
    service.lines.cancel(ns, queue, tid)
    return Response(status_code=204)


# --- messages -------------------------------------------------------------------------------------------------------


@routes.put("/q/{ns}/{queue}", responses={200: json_answer("The message's `id`.")}, operation_id="put_message",
            openapi_extra=PAYLOAD)  # fmt: skip
@routes.post("/q/{ns}/{queue}", responses={200: json_answer("The message's `id`.")}, operation_id="post_message",
             openapi_extra=PAYLOAD)  # fmt: skip
async def push(
    ns: NamespaceName,
    queue: QueueName,
    service: Served,
    request: Request,
    mature: Annotated[
        str | None, Query(description="When the message becomes ready: seconds since 1970, or ISO.")
    ] = None,
    delay: Annotated[float | None, Query(ge=0, description="Seconds until the message becomes ready.")] = None,
    tries: Annotated[int, Query(ge=0, lt=2**31, description="The number of failed tries.")] = 0,
    id: Annotated[
        str | None,
        Query(
            description="The id of the message: while the queue holds it, a second push with it is skipped.",
            max_length=200,
        ),
    ] = None,
) -> Response:
    """Push a message: the body is its payload.

    `Content-Type` says whether it is JSON, text or bytes, and becomes a header of the message. A
    header `x-ks-hdr-NAME` becomes its header NAME.
    """
    room = service.room(ns, queue)
    with service.meters.failing("push", ns, queue):
        payload, kind = payload_of(request, await body_of(request, service.limits.body))
        when = None if mature is None else moment(mature)
        row = pushed(payload, kind, headers_of(request), id=id, mature=when, delay=delay, tries=tries)
        made = await service.push(room, row)
    service.meters.count("push", ns, queue, "ok")
    return answer({"id": made})


@routes.get("/q/{ns}/{queue}", responses=TAKEN)
async def pop(
    ns: NamespaceName,
    queue: QueueName,
    service: Served,
    request: Request,
    to: Wait = 0,
    reserve: Reserve = False,
    lease: Lease = None,
    consumer: HeldFor = None,
    tid: Tid = None,
) -> Response:
    """Pop a message, or reserve it.

    A popped message is removed before the answer is sent: at most once. A reserved message is settled by its
    `x-ks-id`, or becomes ready again when its lease ends.
    """
    room = service.room(ns, queue)
    taken = await taken_by(service, room, request, 1, to, reserve, lease, consumer, tid)
    return alone(taken.batches[0], taken.tag if reserve else None)


async def taken_by(
    service: Service,
    room: Room,
    request: Request,
    most: int,
    to: int,
    reserve: bool,
    lease: int | None,
    consumer: str | None,
    tid: str | None,
) -> Any:
    """Pop or reserve up to `limit` messages for a request, and return them.

    Raises `NoMessage` if none came in time, `Cancelled` or `ShuttingDown` if the wait has ended,
    and `OptionError` for an invalid parameter.
    """
    act = "reserve" if reserve else "pop"
    meters, ns, queue = service.meters, room.ns, room.queue
    tag = new_tag(consumer)
    service.check_wait(to)
    if lease is not None and not reserve:
        raise OptionError("parameter 'lease' needs reserve=1: a popped message is removed at once", option="lease")
    held = lease if lease is not None else room.options.reserve_timeout if reserve else 60_000
    with service.lines.waiter(ns, queue, reserve, tid) as waiter:
        watching = asyncio.ensure_future(watch(request, waiter)) if to else None
        try:
            with meters.failing(act, ns, queue):
                taken = await service.take(room, waiter, tag, most, to, held)
                if taken is not None and not reserve:
                    await service.work(room.popped, taken)
        finally:
            if watching is not None:
                watching.cancel()
    if taken is None:
        meters.count(act, ns, queue, "timeout")
        raise NothingCame(
            f"no message of {ns}/{queue} is ready" if not to else f"no message of {ns}/{queue} came in {to} ms"
        )
    meters.count(act, ns, queue, "ok", taken.rows)
    return taken


# --- outcomes -------------------------------------------------------------------------------------------------------


@routes.patch("/q/{ns}/{queue}/commit/{handle}", status_code=204)
async def commit(ns: NamespaceName, queue: QueueName, handle: Handle, service: Served) -> Response:
    """Commit a reserved message, or all messages of a reservation: they are done and removed.

    404 if the handle no longer holds any; then nothing is changed.
    """
    room = service.room(ns, queue)
    tag, id = held_by(handle)
    with service.meters.failing("commit", ns, queue):
        done = await service.work(room.commit, tag, None if id is None else [id])
    service.meters.count("commit", ns, queue, "ok" if done else "notfound", done or 1)
    check_held(done, ns, queue)
    return Response(status_code=204)


@routes.patch("/q/{ns}/{queue}/rollback/{handle}", responses={200: json_answer("The numbers of messages.")})
async def rollback(
    ns: NamespaceName, queue: QueueName, handle: Handle, service: Served, delay: Delay = 0
) -> Response:
    """Roll back a reserved message, or all messages of a reservation: they failed.

    They become ready again after `delay` ms. If the namespace has `maxTries`, the last failure makes a message a dead
    letter. 404 if the handle no longer holds any.
    """
    room = service.room(ns, queue)
    tag, id = held_by(handle)
    with service.meters.failing("rollback", ns, queue):
        given, dead = await service.work(room.rollback, tag, None if id is None else [id], delay)
    service.meters.count("rollback", ns, queue, "ok", given)
    service.meters.count("rollback", ns, queue, "deadletter", dead)
    service.meters.count("rollback", ns, queue, "notfound", 0 if given or dead else 1)
    check_held(given + dead, ns, queue)
    return answer({"rolled_back": given, "dead": dead})


@routes.patch("/q/{ns}/{queue}/renew/{handle}", responses={200: json_answer("The number of messages that are held.")})
async def renew(
    ns: NamespaceName, queue: QueueName, handle: Handle, service: Served, lease: Lease = None
) -> Response:
    """Renew the lease of a reservation, for work that takes longer."""
    room = service.room(ns, queue)
    tag, _ = held_by(handle)
    held = await service.work(
        room.store.renew, queue, tag, lease if lease is not None else room.options.reserve_timeout
    )
    check_held(held, ns, queue)
    return answer({"held": held})


def check_held(done: int, ns: str, queue: str) -> None:
    """Raise `NotFound` if a receipt holds nothing."""
    if not done:
        raise NotThere(f"the handle holds no message of {ns}/{queue}: it was settled already, or its lease has ended")
