"""Messages, one in each request: push, pop, reserve, and what becomes of a reserved message.

A reserved message is settled by its id, as clients of keuss-server do it, or by its receipt. An id
settles the message for whichever caller over HTTP holds it: if a lease has ended and another caller
has reserved the message since, a late commit removes it. A receipt then settles nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import PlainTextResponse, Response

from spark_queue.errors import MessageError
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.rest.answers import json_response
from spark_queue.rest.bound_queue import BoundQueue
from spark_queue.rest.errors import Cancelled, NotFound
from spark_queue.rest.handles import is_id
from spark_queue.rest.keuss.payloads import (
    message_headers,
    message_response,
    parse_due,
    parse_payload,
    single_message_error,
)
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.receipts import parse_receipt
from spark_queue.rest.routes import (
    CONSUMER_PATTERN,
    NamespaceName,
    QueueName,
    describe_body,
    describe_json,
    router,
)
from spark_queue.rest.service import QueueDependency, ServiceDependency
from spark_queue.rest.takes import Wanted, take

routes = router("keuss-server: messages", strict=False)

#: Values of a parameter that mean no.
FALSE = ("", "0", "false", "no", "off")

MESSAGE_RESPONSE = {
    "description": "The payload; `x-ks-` headers have the rest of the message. With `x-ks-whole` the body is the "
    "whole message in JSON: its headers are too large for a head.",
    "headers": {
        name: {"description": text, "required": required, "schema": {"type": "string"}}
        for name, text, required in (
            ("x-ks-id", "The id of the message.", True),
            ("x-ks-receipt", "The receipt to settle it with, if it is reserved.", False),
            ("x-ks-tries", "The number of failed tries.", True),
            ("x-ks-mature", "When it became ready.", True),
        )
    },
    "content": {"*/*": {"schema": {}}},
}
POP_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: MESSAGE_RESPONSE,
    410: {"description": "The wait was cancelled.", "content": {"text/html": {}}},
    504: describe_json("No message came in time: `timeout`, `tid` and `since`."),
}
EMPTY_OBJECT: dict[int | str, dict[str, Any]] = {200: describe_json("An empty object.")}
PAYLOAD_BODY = describe_body("The payload.", "application/json", "text/plain", "application/octet-stream")

Lease = Annotated[
    int | None,
    Query(
        ge=100,
        le=MAX_DURATION_MS,
        description="How long it is held (ms). Default: `reserveTimeout` of the namespace.",
    ),
]
MessageHandle = Annotated[str, Path(description="The `x-ks-id` or the `x-ks-receipt` of a reserved message.")]


@routes.put("/q/{ns}/{queue}", responses={200: describe_json("The message's `id`.")}, operation_id="put_message",
            openapi_extra=PAYLOAD_BODY)  # fmt: skip
@routes.post("/q/{ns}/{queue}", responses={200: describe_json("The message's `id`.")}, operation_id="post_message",
             openapi_extra=PAYLOAD_BODY)  # fmt: skip
@lane(Lane.WRITE)
async def push(
    bound: QueueDependency,
    service: ServiceDependency,
    request: Request,
    mature: Annotated[
        str | None, Query(description="When the message becomes ready: seconds since 1970, or ISO.")
    ] = None,
    delay: Annotated[
        str | None, Query(description="Seconds until the message becomes ready; not used with `mature`.")
    ] = None,
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
        due, delay_ms = parse_due(mature, delay)
        headers = message_headers(request)
        payload, kind = await parse_payload(request, await service.bodies.read(request), service.bodies)
        row = {
            "id": id, "payload": payload, "payload_kind": kind, "headers": list(headers.items()), "mature": due,
            "delay": delay_ms, "tries": tries,
        }  # fmt: skip
        try:
            pushed_id = await service.push(bound, row)
        except MessageError as error:
            raise single_message_error(row, error) from None
    bound.count("push", "ok")
    return json_response({"id": pushed_id})


@routes.get("/q/{ns}/{queue}", responses=POP_RESPONSES)
@lane(Lane.WAIT)
async def pop(
    bound: QueueDependency,
    service: ServiceDependency,
    request: Request,
    to: Annotated[
        str | None,
        Query(description="How long to wait (ms): by default, and at most, as long as the server allows."),
    ] = None,
    reserve: Annotated[
        str, Query(description="Hold the message until commit or rollback; otherwise it is removed at once.")
    ] = "",
    tid: Annotated[
        str | None, Query(description="A name for this request while it waits, to cancel it by.", max_length=200)
    ] = None,
    lease: Lease = None,
    consumer: Annotated[
        str | None, Query(description="A name for the consumer, which tools show.", pattern=CONSUMER_PATTERN)
    ] = None,
) -> Response:
    """Pop a message, or reserve it.

    A popped message is removed before the answer is sent: at most once. A reserved message is
    settled by its id or its receipt, or becomes ready again when its lease ends.
    """
    reserving = reserve.strip().lower() not in FALSE
    wanted = Wanted(reserving, 1, parse_wait(to, service.limits.wait), lease, consumer, tid)
    try:
        taken, waiter = await take(request, service, bound, wanted)
    except Cancelled:
        return PlainTextResponse("cancel", 410, media_type="text/html")
    if taken is None:
        return json_response({"timeout": True, "tid": waiter.tid, "since": waiter.since}, 504)
    if not reserving:
        return message_response(taken.batches[0], None)
    service.handles.remember(bound, taken.batches[0]["id"][0].as_py(), taken.tag)
    return message_response(taken.batches[0], taken.tag)


def parse_wait(to: str | None, longest: int) -> int:
    """Return how long a request waits (ms): for other text than a number 0, as in keuss-server."""
    if to is None:
        return longest
    try:
        return round(min(max(float(to), 0), longest))
    except ValueError:  # also for NaN
        return 0


@routes.patch("/q/{ns}/{queue}/commit/{handle}", responses=EMPTY_OBJECT)
@lane(Lane.WRITE)
async def commit(ns: NamespaceName, queue: QueueName, handle: MessageHandle, service: ServiceDependency) -> Response:
    """Commit a reserved message: it is done and removed.

    404 if the handle holds no message; then nothing is changed.
    """
    bound = service.get_queue(ns, queue)
    act = service.handles.settle(bound, handle, lambda tag, ids: (bound.commit(tag, ids),))
    with bound.count_errors("commit"):
        (done,) = await service.run_in_thread(act)
    bound.count("commit", "ok" if done else "notfound", done or 1)
    check_held(done, bound, handle, "committed")
    return json_response({})


@routes.patch("/q/{ns}/{queue}/rollback/{handle}", responses=EMPTY_OBJECT)
@lane(Lane.WRITE)
async def rollback(
    ns: NamespaceName,
    queue: QueueName,
    handle: MessageHandle,
    service: ServiceDependency,
    delay: Annotated[int, Query(ge=0, le=MAX_DURATION_MS, description="How long until it is ready again (ms).")] = 0,
) -> Response:
    """Roll back a reserved message: it failed.

    It becomes ready again after `delay` ms. If the namespace has `maxTries`, the last failure makes
    it a dead letter. 404 if the handle holds no message.
    """
    bound = service.get_queue(ns, queue)
    act = service.handles.settle(bound, handle, lambda tag, ids: bound.rollback(tag, ids, delay))
    with bound.count_errors("rollback"):
        rolled_back, dead = await service.run_in_thread(act)
    bound.count_rollback(rolled_back, dead)
    check_held(rolled_back + dead, bound, handle, "rolled back")
    return json_response({})


@routes.patch("/q/{ns}/{queue}/renew/{receipt}", responses={200: describe_json("The number of messages held.")})
@lane(Lane.WRITE)
async def renew(
    bound: QueueDependency,
    receipt: str,
    service: ServiceDependency,
    lease: Lease = None,
) -> Response:
    """Renew the lease of a reserved message by its receipt, for work that takes longer.

    keuss-server has no such call.
    """
    parsed = parse_receipt(receipt)
    stored = bound.stored if lease is None else bound.stored.with_policy(lease=lease)
    held = await service.run_in_thread(stored.renew, parsed[0]) if parsed else 0
    check_held(held, bound, receipt, "renewed; that takes an x-ks-receipt")
    return json_response({"held": held})


@routes.delete("/q/{ns}/{queue}/{id}", status_code=204)
@lane(Lane.WRITE)
async def remove(ns: NamespaceName, queue: QueueName, id: str, service: ServiceDependency) -> Response:
    """Remove a message that no client holds. 404 if there is none with this id."""
    bound = service.get_queue(ns, queue)
    removed = await service.run_in_thread(bound.store.purge, queue, [id]) if is_id(id) else 0
    check_held(removed, bound, id, "removed")
    return Response(status_code=204)


def check_held(done: int, bound: BoundQueue, handle: str, what: str) -> None:
    """Raise `NotFound` if nothing was done with the message of an id or receipt."""
    if not done:
        raise NotFound(
            f"id {handle[:100]} cannot be {what}: {bound.ns}/{bound.queue} has no such message in that state. It was "
            "settled already, or its lease has ended"
        )
