"""Batches of messages in JSON, as `pop --json` prints them. keuss-server has no batches."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from spark_queue.admin.push import messages_to_batch
from spark_queue.errors import MessageError, OptionError
from spark_queue.rest.errors import NoMessage, UnsupportedMediaType
from spark_queue.rest.payloads import batch_error, json_response, media_type, message_dicts, parse_json, read_body
from spark_queue.rest.queues import TakeDependency
from spark_queue.rest.receipts import group_by_tag, receipt_of
from spark_queue.rest.routes import Delay, describe_body, describe_json, router
from spark_queue.rest.service import QueueDependency, Service, ServiceDependency

routes = router("batches")

#: Maximum number of messages of a pop without the parameter `n`.
DEFAULT_POP = 100

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
HANDLES_SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 1}


async def _read_list(request: Request, service: Service, noun: str) -> list[object]:
    """Read a body that must be a JSON array. `noun` names its items in errors.

    Raises `UnsupportedMediaType` for another type, `OptionError` if it is not an array or too long.
    """
    media = media_type(request.headers.get("content-type", ""))
    if media != "application/json":
        raise UnsupportedMediaType(
            f"header Content-Type is {media!r} but must be application/json, for the body is a JSON array of {noun}s"
        )
    found = parse_json(await read_body(request, service.limits.body))
    if not isinstance(found, list):
        raise OptionError(f"the body must be a JSON array of {noun}s")
    service.check_body(len(found), noun)
    return list(found)


@routes.post("/q/{ns}/{queue}/batch", responses={200: describe_json("The `ids`, in order.")},
             openapi_extra=describe_body("The messages.", "application/json", schema=MESSAGES_SCHEMA))  # fmt: skip
async def push_batch(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Push messages: all of them, or none if one is invalid.

    A message whose id the queue already holds is skipped, so a batch with ids may be pushed again.
    """
    with bound.count_errors("push"):
        values = await _read_list(request, service, "message")

        def act() -> list[str]:
            try:
                batch = messages_to_batch(values, store=bound.store)  # type: ignore[arg-type]
                bound.store.push(bound.queue, batch)
            except MessageError as error:
                raise batch_error(error) from None
            ids: list[str] = batch.column("id").to_pylist()
            return ids

        ids = await service.run_in_thread(act)
    bound.count("push", "ok", len(ids))
    return json_response({"ids": ids})


@routes.get(
    "/q/{ns}/{queue}/batch", responses={200: describe_json("`messages`, and the `reservation` that holds them.")}
)
async def pop_batch(
    take: TakeDependency,
    service: ServiceDependency,
    n: Annotated[int | None, Query(ge=1, description="Return at most this many messages. Default: 100.")] = None,
) -> Response:
    """Pop messages, or reserve them: those that are ready when the first one is.

    The list is empty if no message is ready. It may have fewer than `n` messages if they are large.
    `reservation` settles all of them, and the `handle` of a message settles that message.
    """
    limit = min(DEFAULT_POP, service.limits.messages) if n is None else n
    service.check_limit(limit, "n")
    try:
        batches, tag = await take(limit)
    except NoMessage:
        return json_response({"reservation": None, "messages": []})

    def act() -> Response:
        handle = None if tag is None else receipt_of(tag)
        return json_response({"reservation": handle, "messages": list(message_dicts(batches, tag))})

    return await service.run_in_thread(act)


async def _read_receipts(request: Request, service: Service) -> dict[str, list[str] | None]:
    handles = await _read_list(request, service, "handle")
    if not handles or not all(isinstance(one, str) for one in handles):
        raise OptionError("the body must be a JSON array of one or more handles, which are strings")
    return group_by_tag([str(one) for one in handles])


@routes.patch("/q/{ns}/{queue}/commit", responses={200: describe_json("The number of messages `committed`.")},
              openapi_extra=describe_body("Handles.", "application/json", schema=HANDLES_SCHEMA))  # fmt: skip
async def commit_batch(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Commit reserved messages by their handles, or by those of whole reservations.

    They are done and removed. Messages that a handle no longer holds are not changed and not
    counted.
    """
    with bound.count_errors("commit"):
        ids_by_tag = await _read_receipts(request, service)
        done = await service.run_in_thread(lambda: sum(bound.commit(tag, ids) for tag, ids in ids_by_tag.items()))
    bound.count("commit", "ok", done)
    return json_response({"committed": done})


@routes.patch("/q/{ns}/{queue}/rollback", responses={200: describe_json("The numbers of messages.")},
              openapi_extra=describe_body("Handles.", "application/json", schema=HANDLES_SCHEMA))  # fmt: skip
async def rollback_batch(
    bound: QueueDependency, service: ServiceDependency, request: Request, delay: Delay = 0
) -> Response:
    """Roll back reserved messages: they failed, and become ready again or dead letters."""
    with bound.count_errors("rollback"):
        ids_by_tag = await _read_receipts(request, service)
        counts = await service.run_in_thread(
            lambda: [bound.rollback(tag, ids, delay) for tag, ids in ids_by_tag.items()]
        )
    rolled_back, dead = sum(one for one, _ in counts), sum(one for _, one in counts)
    bound.count("rollback", "ok", rolled_back)
    bound.count("rollback", "deadletter", dead)
    return json_response({"rolled_back": rolled_back, "dead": dead})
