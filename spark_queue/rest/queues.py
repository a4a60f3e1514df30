"""Queues in the form of keuss-server: one message per request, and the status of queues.

A reserved message is settled by its `x-ks-id`, which is a receipt (`receipts.py`) and not the bare
id of keuss. So a late commit cannot remove a message that another consumer has reserved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pyarrow as pa
from fastapi import Depends, Query, Request
from starlette.responses import Response

from spark_queue.errors import OptionError
from spark_queue.messages.schema import MAX_TIME_MS
from spark_queue.options.masking import mask
from spark_queue.rest.errors import NoMessage, NotFound
from spark_queue.rest.metrics import queue_status, queues_of
from spark_queue.rest.payloads import (
    json_response,
    message_headers,
    message_response,
    parse_mature,
    parse_payload,
    read_body,
)
from spark_queue.rest.receipts import new_tag, parse_receipt
from spark_queue.rest.routes import (
    ConsumerName,
    Delay,
    Handle,
    Lease,
    NamespaceName,
    QueueName,
    Reserve,
    Tid,
    Wait,
    describe_body,
    describe_json,
    router,
)
from spark_queue.rest.service import POP_LEASE, BoundQueue, QueueDependency, ServiceDependency, watch_disconnect
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

POP_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: MESSAGE_RESPONSE,
    410: {"description": "The wait was cancelled."},
    504: {"description": "No message is ready, or came in time."},
}
PAYLOAD_BODY = describe_body("The payload.", "application/json", "text/plain", "application/octet-stream")


# --- status of queues -----------------------------------------------------------------------------


def _status(ns: str, store: Store, queue: str) -> dict[str, Any]:
    return {"ns": ns, "queue": queue, **queue_status(store, queue)}


def _statuses(ns: str, store: Store) -> dict[str, Any]:
    return {queue: _status(ns, store, queue) for queue in queues_of(store)}


@routes.get("/q", responses={200: describe_json("The namespaces and their stores.")})
async def namespaces(service: ServiceDependency) -> Response:
    """List the namespaces that this server serves."""
    return json_response({ns: {"store": mask(store.url).partition("?")[0]} for ns, store in service.stores.items()})


@routes.get(
    "/q/{ns}", responses={200: describe_json("By queue.", {"type": "object", "additionalProperties": QUEUE_STATUS})}
)
async def queues(ns: NamespaceName, service: ServiceDependency) -> Response:
    """Return the status of all queues of a namespace that hold messages or were used before."""
    store = service.get_queue(ns, "any").store
    return json_response(await service.run_in_thread(_statuses, ns, store))


@routes.get("/q/{ns}/{queue}/status", responses={200: describe_json("Sizes and counters.", QUEUE_STATUS)})
async def status(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Return the numbers of messages in a queue, by state, and counters."""
    return json_response(await service.run_in_thread(_status, bound.ns, bound.store, bound.queue))


@routes.get("/q/{ns}/{queue}/paused", responses={200: describe_json("`paused`.")})
async def paused(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Return whether a queue is paused."""
    return json_response({"paused": await service.run_in_thread(bound.store.is_paused, bound.queue)})


@routes.patch("/q/{ns}/{queue}/pause", status_code=201, responses={201: describe_json("`paused`.")})
async def pause(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Pause the queue: no client can reserve messages until `resume`, keuss programs included."""
    await service.run_in_thread(bound.store.pause, bound.queue)
    return json_response({"paused": True}, 201)


@routes.patch("/q/{ns}/{queue}/resume", status_code=201, responses={201: describe_json("`paused`.")})
async def resume(bound: QueueDependency, service: ServiceDependency) -> Response:
    """Resume the queue."""
    await service.run_in_thread(bound.store.resume, bound.queue)
    return json_response({"paused": False}, 201)


@routes.get("/q/{ns}/{queue}/consumers", responses={200: describe_json("Waiting requests, by `tid`.")})
async def consumers(bound: QueueDependency, service: ServiceDependency) -> Response:
    """List the requests that wait for messages of the queue at this server."""
    waiting = service.wait_list.waiters_of(bound.ns, bound.queue)
    return json_response({one.tid: {"tid": one.tid, "since": one.since, "reserve": one.reserve} for one in waiting})


@routes.delete("/q/{ns}/{queue}/consumer/{tid}", status_code=204)
async def cancel(ns: NamespaceName, queue: QueueName, tid: str, service: ServiceDependency) -> Response:
    """Cancel a waiting request; its answer is 410."""
    service.get_queue(ns, queue)
    service.wait_list.cancel(ns, queue, tid)
    return Response(status_code=204)


# --- messages -------------------------------------------------------------------------------------


@routes.put("/q/{ns}/{queue}", responses={200: describe_json("The message's `id`.")}, operation_id="put_message",
            openapi_extra=PAYLOAD_BODY)  # fmt: skip
@routes.post("/q/{ns}/{queue}", responses={200: describe_json("The message's `id`.")}, operation_id="post_message",
             openapi_extra=PAYLOAD_BODY)  # fmt: skip
async def push(
    bound: QueueDependency,
    service: ServiceDependency,
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
    with bound.count_errors("push"):
        payload, kind = parse_payload(request, await read_body(request, service.limits.body))
        when = None if mature is None else parse_mature(mature)
        headers = message_headers(request)
        if delay is not None and not 0 <= delay <= MAX_TIME_MS / 2000:
            raise OptionError(
                f"parameter 'delay' is {delay} but must be 0 or more seconds, and end before the year 5000",
                option="delay",
            )
        if when is not None and delay is not None:
            raise OptionError("parameters 'mature' and 'delay' exclude each other: give one of them", option="mature")
        row = {
            "id": id, "payload": payload, "payload_kind": kind, "headers": list(headers.items()), "mature": when,
            "delay": None if delay is None else round(delay * 1000), "tries": tries,
        }  # fmt: skip
        pushed_id = await service.push(bound, row)
    bound.count("push", "ok")
    return json_response({"id": pushed_id})


#: Pops or reserves up to this number of messages. Returns their batches, and the tag that holds
#: them if they are reserved.
Take = Callable[[int], Awaitable[tuple[list[pa.RecordBatch], str | None]]]


async def _get_take(
    bound: QueueDependency,
    service: ServiceDependency,
    request: Request,
    to: Wait = 0,
    reserve: Reserve = False,
    lease: Lease = None,
    consumer: ConsumerName = None,
    tid: Tid = None,
) -> Take:
    """Return the function that takes messages for a request.

    It raises `NoMessage` if none came in time, `Cancelled` or `ShuttingDown` if the wait has ended,
    and `OptionError` for an invalid parameter.
    """
    action = "reserve" if reserve else "pop"
    tag = new_tag(consumer)
    if to > service.limits.wait:
        raise OptionError(
            f"parameter 'to' is {to}, but a request may wait for {service.limits.wait:,} ms at most", option="to"
        )
    if lease is not None and not reserve:
        raise OptionError("parameter 'lease' needs reserve=1: a popped message is removed at once", option="lease")
    lease_ms = lease if lease is not None else bound.options.reserve_timeout if reserve else POP_LEASE

    async def take(limit: int) -> tuple[list[pa.RecordBatch], str | None]:
        with service.wait_list.register(bound.ns, bound.queue, reserve, tid) as waiter:
            watching = asyncio.ensure_future(watch_disconnect(request, waiter)) if to else None
            try:
                with bound.count_errors(action):
                    taken = await service.take(bound, waiter, tag, limit, to, lease_ms)
                    if taken is not None and not reserve:
                        await service.run_in_thread(bound.remove_popped, taken)
            finally:
                if watching is not None:
                    watching.cancel()
        if taken is None:
            bound.count(action, "timeout")
            when = f"came in {to} ms" if to else "is ready"
            raise NoMessage(f"no message of {bound.ns}/{bound.queue} {when}")
        bound.count(action, "ok", sum(batch.num_rows for batch in taken.batches))
        return taken.batches, taken.tag if reserve else None

    return take


TakeDependency = Annotated[Take, Depends(_get_take)]


@routes.get("/q/{ns}/{queue}", responses=POP_RESPONSES)
async def pop(take: TakeDependency) -> Response:
    """Pop a message, or reserve it.

    A popped message is removed before the answer is sent: at most once. A reserved message is
    settled by its `x-ks-id`, or becomes ready again when its lease ends.
    """
    batches, tag = await take(1)
    return message_response(batches[0], tag)


# --- outcomes -------------------------------------------------------------------------------------


@routes.patch("/q/{ns}/{queue}/commit/{handle}", status_code=204)
async def commit(ns: NamespaceName, queue: QueueName, handle: Handle, service: ServiceDependency) -> Response:
    """Commit a reserved message, or all messages of a reservation: they are done and removed.

    404 if the handle no longer holds any; then nothing is changed.
    """
    bound = service.get_queue(ns, queue)
    tag, id = parse_receipt(handle)
    with bound.count_errors("commit"):
        done = await service.run_in_thread(bound.commit, tag, None if id is None else [id])
    bound.count("commit", "ok" if done else "notfound", done or 1)
    check_held(done, bound)
    return Response(status_code=204)


@routes.patch("/q/{ns}/{queue}/rollback/{handle}", responses={200: describe_json("The numbers of messages.")})
async def rollback(
    ns: NamespaceName, queue: QueueName, handle: Handle, service: ServiceDependency, delay: Delay = 0
) -> Response:
    """Roll back a reserved message, or all messages of a reservation: they failed.

    They become ready again after `delay` ms. If the namespace has `maxTries`, the last failure
    makes a message a dead letter. 404 if the handle no longer holds any.
    """
    bound = service.get_queue(ns, queue)
    tag, id = parse_receipt(handle)
    with bound.count_errors("rollback"):
        rolled_back, dead = await service.run_in_thread(bound.rollback, tag, None if id is None else [id], delay)
    bound.count("rollback", "ok", rolled_back)
    bound.count("rollback", "deadletter", dead)
    bound.count("rollback", "notfound", 0 if rolled_back or dead else 1)
    check_held(rolled_back + dead, bound)
    return json_response({"rolled_back": rolled_back, "dead": dead})


@routes.patch(
    "/q/{ns}/{queue}/renew/{handle}", responses={200: describe_json("The number of messages that are held.")}
)
async def renew(
    ns: NamespaceName, queue: QueueName, handle: Handle, service: ServiceDependency, lease: Lease = None
) -> Response:
    """Renew the lease of a reservation, for work that takes longer."""
    bound = service.get_queue(ns, queue)
    tag, _ = parse_receipt(handle)
    lease_ms = lease if lease is not None else bound.options.reserve_timeout
    held = await service.run_in_thread(bound.store.renew, queue, tag, lease_ms)
    check_held(held, bound)
    return json_response({"held": held})


def check_held(done: int, bound: BoundQueue) -> None:
    """Raise `NotFound` if a receipt holds nothing."""
    if not done:
        raise NotFound(
            f"the handle holds no message of {bound.ns}/{bound.queue}: it was settled already, or its lease has ended"
        )
