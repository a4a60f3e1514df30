"""Push, reserve, and look at messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import Query, Request
from starlette.responses import Response

from spark_queue.admin.push import messages_to_batch
from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.payload import Json
from spark_queue.messages.schema import MESSAGES
from spark_queue.messages.times import MAX_TIME_MS, MIN_TIME_MS
from spark_queue.rest.answers import json_response, json_text, text_response
from spark_queue.rest.base64url import decode_base64url, encode_base64url
from spark_queue.rest.errors import add_nothing_pushed
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.looks.contents import Contents, look_at
from spark_queue.rest.message_dicts import message_dicts
from spark_queue.rest.receipts import receipt_of
from spark_queue.rest.routes import CONSUMER_PATTERN, describe_body, describe_json, router, viewable
from spark_queue.rest.service import QueueDependency, ServiceDependency
from spark_queue.rest.takes import Wanted, take
from spark_queue.rest.v1.fields import parse_count, parse_duration, parse_text, read_fields, read_json
from spark_queue.stores.types import Condition

routes = router("messages")

#: Messages that are reserved or looked at by default.
DEFAULT_LIMIT = 100

DURATION = {"type": "string", "pattern": r"^\d{1,9}(ms|s|m|h)$"}
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
RESERVE_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "limit": {"type": "integer", "minimum": 1, "description": f"Default: {DEFAULT_LIMIT}."},
        "wait": DURATION | {"description": "How long to wait for the first message, such as `20s`. Default: not."},
        "lease": DURATION | {"description": "How long they are held. Default: `reserveTimeout` of the namespace."},
        "consumer": {"type": "string", "pattern": CONSUMER_PATTERN, "description": "A name, which tools show."},
    },
}


@routes.post(
    "/v1/queues/{ns}/{queue}/messages",
    responses={200: describe_json("The `ids`, in order.")},
    openapi_extra=describe_body(
        "The messages.", "application/json", schema={"type": "array", "items": MESSAGE_SCHEMA}
    ),
)
@lane(Lane.WRITE)
async def push(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Push messages: all of them, or none if one is invalid.

    A message whose id the queue already holds is skipped, so messages with ids may be pushed again.
    """
    with bound.count_errors("push"):
        values = await read_json(request, service)
        if not isinstance(values, list):
            raise OptionError("the body must be a JSON array of messages")
        service.check_body(len(values), "message")

        def act() -> list[str]:
            try:
                batch = messages_to_batch(values, store=bound.store)
                bound.store.push(bound.queue, batch)
            except MessageError as error:
                raise _batch_error(error) from None
            ids: list[str] = batch.column("id").to_pylist()
            return ids

        ids = await service.run_in_thread(act)
    bound.count("push", "ok", len(ids))
    return json_response({"ids": ids})


def _batch_error(error: MessageError) -> MessageError:
    """Return the error for a batch: it names the first invalid message, and counts the others."""
    position, rule = next(iter(error.rows.items()))
    rest = f" (and {len(error.rows) - 1} more)" if len(error.rows) > 1 else ""
    return MessageError(add_nothing_pushed(f"message {position}{rest}: {rule}"), rows=error.rows)


@routes.post(
    "/v1/queues/{ns}/{queue}/reserve",
    responses={200: describe_json("`messages`, and the `receipt` of all of them.")},
    openapi_extra=describe_body("What to reserve.", "application/json", schema=RESERVE_SCHEMA, required=False),
)
@lane(Lane.WAIT)
async def reserve(bound: QueueDependency, service: ServiceDependency, request: Request) -> Response:
    """Reserve messages: those that are ready when the first one is.

    The list is empty if no message came in time. It may have fewer messages than `limit` if they
    are large. Each has a `receipt` to settle it by; the `receipt` beside the list settles all.
    """
    fields = await read_fields(request, service, {
        "limit": parse_count(service.limits.messages),
        "wait": parse_duration(service.limits.wait),
        "lease": parse_duration(shortest=100),
        "consumer": parse_consumer,
    })  # fmt: skip
    limit = fields.pop("limit", min(DEFAULT_LIMIT, service.limits.messages))
    taken, _ = await take(request, service, bound, Wanted(reserve=True, limit=limit, **fields))
    if taken is None:
        return json_response({"receipt": None, "messages": []})

    def act() -> Response:
        messages = list(message_dicts(taken.batches, taken.tag))
        return json_response({"receipt": receipt_of(taken.tag), "messages": messages})

    return await service.run_in_thread(act, lane=Lane.WRITE)


@routes.get("/v1/queues/{ns}/{queue}/messages", responses={200: describe_json("`messages`, and a cursor `after`.")})
@lane(Lane.LOOK)
@viewable
async def look(
    bound: QueueDependency,
    service: ServiceDependency,
    id: Annotated[list[str] | None, Query(description="Only these ids.")] = None,
    due_from: Annotated[datetime | None, Query(description="Only those due at this moment or later.")] = None,
    due_until: Annotated[datetime | None, Query(description="Only those due before this moment.")] = None,
    min_tries: Annotated[int, Query(ge=0, lt=2**31, description="Only those with as many failed tries.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Return at most this many messages.")] = DEFAULT_LIMIT,
    after: Annotated[str | None, Query(description="The `after` of the last answer.", max_length=1_000)] = None,
) -> Response:
    """Look at messages in the order in which they are due, without reserving them.

    Reserved and scheduled messages are shown, too. To read on, give the `after` of the last answer;
    it is null at the end. Messages that change in between may be missing, or come twice.
    """
    service.check_limit(limit, "limit")
    where: list[Condition] = []
    if id is not None:
        service.check_limit(len(id), "id")
        where.append(Condition("id", "in", tuple(id)))
    for name, op, moment in (("due_from", ">=", due_from), ("due_until", "<", due_until)):
        if moment is not None:
            where.append(Condition("mature", op, _milliseconds_of(name, moment)))  # type: ignore[arg-type]
    if min_tries:
        where.append(Condition("tries", ">=", min_tries))
    start = None if after is None else _parse_cursor(after)

    return text_response(await service.look((), _read_page, bound.ns, bound.queue, where, limit, start))


class _Place(NamedTuple):
    """Where a page ended: the moment (ms) and the id of its last message.

    `seen`: how many messages of that moment there were up to it.
    """

    moment: int
    id: str
    seen: int


@look_at
def _read_page(
    contents: Contents, ns: str, queue: str, where: Sequence[Condition], limit: int, start: _Place | None
) -> bytes:
    """Return a page.

    Messages of one moment are in the order of their pushes, which no condition can name. So those
    of the moment of `start` are read again, up to the last one that was seen.
    """
    if start is not None:
        where = [*where, Condition("mature", ">=", start.moment)]
        limit += start.seen
    batches = list(contents.stores[ns].peek(queue, where, limit=limit))
    found = pa.Table.from_batches(batches, MESSAGES)
    moments = milliseconds(found.column("mature"))
    skipped = 0
    if start is not None:
        same = _count(moments, start.moment)
        at = pc.index(found.column("id").slice(0, same), start.id).as_py()
        skipped = at + 1 if at >= 0 else min(same, start.seen)
    last = None
    if found.num_rows == limit:
        moment = moments[-1].as_py()
        last = _cursor_text(_Place(moment, found.column("id")[-1].as_py(), _count(moments, moment)))
    return json_text({"messages": list(message_dicts(found.slice(skipped).to_batches(), None)), "after": last})


def _count(moments: pa.ChunkedArray, moment: int) -> int:
    """Return how many of the moments are this one."""
    number: int | None = pc.sum(pc.equal(moments, moment)).as_py()
    return number or 0


def _cursor_text(place: _Place) -> str:
    return encode_base64url(orjson.dumps(list(place)))


def _parse_cursor(text: str) -> _Place:
    try:
        moment, id, *more = orjson.loads(decode_base64url(text))
        (seen,) = more or (0,)  # earlier versions had none
        valid = isinstance(moment, int) and isinstance(id, str) and isinstance(seen, int)
        if valid and MIN_TIME_MS <= moment <= MAX_TIME_MS and 0 <= seen < 2**31:
            return _Place(moment, id, seen)
    except (ValueError, TypeError):
        pass
    raise OptionError(f"parameter 'after' is {text[:60]!r} but must be the 'after' of an answer", option="after")


def _milliseconds_of(name: str, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise OptionError(f"parameter {name!r} has no time zone: write 2026-01-31T12:00:00Z", option=name)
    return max(MIN_TIME_MS, min(round(moment.timestamp() * 1000), MAX_TIME_MS))  # UTC may be in another year


def parse_consumer(value: Json) -> str:
    """Return the name of a consumer. Raises `ValueError` if it is invalid."""
    text = parse_text(value)
    if not re.fullmatch(CONSUMER_PATTERN, text):
        raise ValueError("1 to 95 letters, digits and _ . : @ -")
    return text
