"""Batches of messages in JSON, as `pop --json` prints them. keuss-server has no batches."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from spark_queue.admin.push import whole_messages
from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.ids import new_id_array
from spark_queue.rest.errors import NothingCame, NotUnderstood
from spark_queue.rest.payloads import answer, body_of, facts_of, json_of, refused_batch
from spark_queue.rest.queues import taken_by
from spark_queue.rest.receipts import by_tag, handle_of
from spark_queue.rest.routes import (
    Delay,
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
from spark_queue.rest.service import Served, Service

routes = router("batches")

#: Maximum number of messages of a pop without the parameter `n`.
USUAL_POP = 100

MESSAGE_SCHEMA = {
    "type": "object",
    "required": ["payload"],
    "additionalProperties": False,
    "properties": {
        "payload": {"description": 'JSON; a string is a text, `{"$binary": …}` (Extended JSON) bytes.'},
        "id": {"type": "string", "minLength": 1, "maxLength": 50},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "mature": {"type": "string", "format": "date-time"},
        "delay": {"type": "number", "minimum": 0, "maximum": 1e9, "description": "Seconds."},
        "tries": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    },
}
MESSAGES_SCHEMA = {"type": "array", "items": MESSAGE_SCHEMA}
HANDLES = {"type": "array", "items": {"type": "string"}, "minItems": 1}


async def _list(request: Request, service: Service, of: str) -> list[object]:
    """Read a body that must be a JSON array. `noun` names its items in errors.

    Raises `UnsupportedMediaType` for another type, `OptionError` if it is not an array or too long.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise NotUnderstood(
            f"header Content-Type is {media!r} but must be application/json, for the body is a JSON array of {of}s"
        )
    found = json_of(await body_of(request, service.limits.body))
    if not isinstance(found, list):
        raise OptionError(f"the body must be a JSON array of {of}s")
    service.check_body(len(found), of)
    return list(found)


@routes.post("/q/{ns}/{queue}/batch", responses={200: json_answer("The `ids`, in order.")},
             openapi_extra=body("The messages.", "application/json", schema=MESSAGES_SCHEMA))  # fmt: skip
async def push_batch(ns: NamespaceName, queue: QueueName, service: Served, request: Request) -> Response:
    """Push messages: all of them, or none if one is invalid.

    A message whose id the queue already holds is skipped, so a batch with ids may be pushed again.
    """
    room = service.room(ns, queue)
    with service.meters.failing("push", ns, queue):
        values = await _list(request, service, "message")

        def act() -> list[str]:
            try:
                batch = whole_messages(values, made=lambda n: room.store.own_ids(new_id_array(n)).to_pylist())  # type: ignore[arg-type]
                room.store.push(queue, batch)
            except MessageError as error:
                raise refused_batch(error) from None
            ids: list[str] = batch.column("id").to_pylist()
            return ids

        ids = await service.work(act)
    service.meters.count("push", ns, queue, "ok", len(ids))
    return answer({"ids": ids})


@routes.get(
    "/q/{ns}/{queue}/batch", responses={200: json_answer("`messages`, and the `reservation` that holds them.")}
)
async def pop_batch(
    ns: NamespaceName,
    queue: QueueName,
    service: Served,
    request: Request,
    n: Annotated[int | None, Query(ge=1, description="Return at most this many messages. Default: 100.")] = None,
    to: Wait = 0,
    reserve: Reserve = False,
    lease: Lease = None,
    consumer: HeldFor = None,
    tid: Tid = None,
) -> Response:
    """Pop messages, or reserve them: those that are ready when the first one is.

    The list is empty if no message is ready. It may have fewer than `n` messages if they are large.
    `reservation` settles all of them, and the `handle` of a message settles that message.
    """
    room = service.room(ns, queue)
    most = min(USUAL_POP, service.limits.messages) if n is None else n
    service.check_most(most, "n")
    try:
        taken = await taken_by(service, room, request, most, to, reserve, lease, consumer, tid)
    except NothingCame:
        return answer({"reservation": None, "messages": []})
    tag = taken.tag if reserve else None

    def act() -> Response:
        handle = None if tag is None else handle_of(tag)
        return answer({"reservation": handle, "messages": list(facts_of(taken.batches, tag))})

    return await service.work(act)


async def _handles(request: Request, service: Service) -> dict[str, list[str] | None]:
    handles = await _list(request, service, "handle")
    if not handles or not all(isinstance(one, str) for one in handles):
        raise OptionError("the body must be a JSON array of one or more handles, which are strings")
    return by_tag([str(one) for one in handles])


@routes.patch("/q/{ns}/{queue}/commit", responses={200: json_answer("The number of messages that were `committed`.")},
              openapi_extra=body("Handles.", "application/json", schema=HANDLES))  # fmt: skip
async def commit_batch(ns: NamespaceName, queue: QueueName, service: Served, request: Request) -> Response:
    """Commit reserved messages by their handles, or by those of whole reservations: they are done and removed.

    Messages that a handle no longer holds are not changed and not counted.
    """
    room = service.room(ns, queue)
    with service.meters.failing("commit", ns, queue):
        held = await _handles(request, service)
        done = await service.work(lambda: sum(room.commit(tag, ids) for tag, ids in held.items()))
    service.meters.count("commit", ns, queue, "ok", done)
    return answer({"committed": done})


@routes.patch("/q/{ns}/{queue}/rollback", responses={200: json_answer("The numbers of messages.")},
              openapi_extra=body("Handles.", "application/json", schema=HANDLES))  # fmt: skip
async def rollback_batch(
    ns: NamespaceName, queue: QueueName, service: Served, request: Request, delay: Delay = 0
) -> Response:
    """Roll back reserved messages: they failed, and become ready again or dead letters."""
    room = service.room(ns, queue)
    with service.meters.failing("rollback", ns, queue):
        held = await _handles(request, service)
        both = await service.work(lambda: [room.rollback(tag, ids, delay) for tag, ids in held.items()])
    given, dead = sum(one for one, _ in both), sum(one for _, one in both)
    service.meters.count("rollback", ns, queue, "ok", given)
    service.meters.count("rollback", ns, queue, "deadletter", dead)
    return answer({"rolled_back": given, "dead": dead})
