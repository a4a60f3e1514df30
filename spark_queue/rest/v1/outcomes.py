"""What becomes of reserved messages: commit, rollback, renew, dead letters.

Each call takes `receipts`. A message that a receipt no longer holds is not changed and not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from spark_queue.rest.answers import json_response
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.receipts import group_by_tag
from spark_queue.rest.routes import describe_body, describe_json, router
from spark_queue.rest.service import QueueDependency, Service, ServiceDependency
from spark_queue.rest.v1.fields import FieldParser, parse_duration, parse_text, parse_texts, read_fields
from spark_queue.rest.v1.messages import DURATION

routes = router("outcomes")

#: Text of a dead letter whose caller gave no reason.
NO_REASON = "a caller gave up"

_RECEIPTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def _body(**fields: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a body with `receipts` and other fields."""
    schema = {
        "type": "object",
        "required": ["receipts"],
        "additionalProperties": False,
        "properties": {"receipts": _RECEIPTS, **fields},
    }
    return describe_body("The receipts of messages, or of whole reservations.", "application/json", schema=schema)


async def _read(
    request: Request, service: Service, **parsers: FieldParser
) -> tuple[dict[str, list[str] | None], dict[str, Any]]:
    """Return the ids to settle by tag, and the other fields of a body."""
    known = {"receipts": parse_texts(service.limits.messages), **parsers}
    fields = await read_fields(request, service, known, "receipts")
    return group_by_tag(fields.pop("receipts")), fields


@routes.post(
    "/v1/queues/{ns}/{queue}/commit",
    responses={200: describe_json("The number of messages `committed`.")},
    openapi_extra=_body(),
)
@lane(Lane.WRITE)
async def commit(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Commit reserved messages: they are done and removed."""
    with bound.count_errors("commit"):
        ids_by_tag, _ = await _read(request, service)
        done = await _sum(service, ids_by_tag, bound.commit)
    bound.count("commit", "ok", done)
    return json_response({"committed": done})


@routes.post(
    "/v1/queues/{ns}/{queue}/rollback",
    responses={200: describe_json("The numbers of messages `rolled_back` and `dead`.")},
    openapi_extra=_body(delay=DURATION | {"description": "How long until they are ready again. Default: at once."}),
)
@lane(Lane.WRITE)
async def rollback(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Roll back reserved messages: they failed, and become ready again.

    If the namespace has `maxTries`, the last failure makes a message a dead letter.
    """
    with bound.count_errors("rollback"):
        ids_by_tag, fields = await _read(request, service, delay=parse_duration())
        delay = fields.get("delay", 0)

        def act() -> list[tuple[int, int]]:
            return [bound.rollback(tag, ids, delay) for tag, ids in ids_by_tag.items()]

        counts = await service.run_in_thread(act)
    rolled_back, dead = sum(one for one, _ in counts), sum(one for _, one in counts)
    bound.count_rollback(rolled_back, dead)
    return json_response({"rolled_back": rolled_back, "dead": dead})


@routes.post(
    "/v1/queues/{ns}/{queue}/renew",
    responses={200: describe_json("The number of messages that are `held`.")},
    openapi_extra=_body(lease=DURATION | {"description": "Default: `reserveTimeout` of the namespace."}),
)
@lane(Lane.WRITE)
async def renew(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Renew the leases of whole reservations, for work that takes longer.

    The receipt of one message renews all messages that were reserved with it.
    """
    ids_by_tag, fields = await _read(request, service, lease=parse_duration(shortest=100))
    stored = bound.stored.with_policy(lease=fields["lease"]) if "lease" in fields else bound.stored
    held = await _sum(service, ids_by_tag, lambda tag, _: stored.renew(tag))
    return json_response({"held": held})


@routes.post(
    "/v1/queues/{ns}/{queue}/dead",
    responses={200: describe_json("The number of messages that are `dead`.")},
    openapi_extra=_body(reason={"type": "string", "description": "Why, for the header `x-error`."}),
)
@lane(Lane.WRITE)
async def dead(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Make reserved messages dead letters, whatever their number of tries."""
    with bound.count_errors("rollback"):
        ids_by_tag, fields = await _read(request, service, reason=parse_text)
        reason = fields.get("reason") or NO_REASON

        def act(tag: str, ids: list[str] | None) -> int:
            return bound.stored.dead_letter(tag, ids, reason=reason)

        moved = await _sum(service, ids_by_tag, act)
    bound.count("rollback", "deadletter", moved)
    return json_response({"dead": moved})


async def _sum(
    service: Service, ids_by_tag: dict[str, list[str] | None], act: Callable[[str, list[str] | None], int]
) -> int:
    """Return the sum of the results of `act` for each tag."""
    return await service.run_in_thread(lambda: sum(act(tag, ids) for tag, ids in ids_by_tag.items()))
