"""Events in the form of hub-queue, over HTTP: as in its README, or as in its newest code.

| | README (the default) | newest code (`rs:format=head`) |
|---|---|---|
| GET, XML | `event-list/event-uri*` | `event-list/event-id*` |
| GET, JSON | `{"eventList": […]}` | `[…]` |
| PUT, XML | `result-list/result/{event-uri,result}` | `event-list/event/{event-id,event-status}` |
| PUT, JSON | `{"resultList": [{"uri", "result"}]}` | `[{"id", "status"}]` |
| text | ids, or `id,status`, a line each (CRLF) | the same |

A body of PUT may have either form. For a wrong call hub-queue answers 500, and this server 400.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal
from xml.etree.ElementTree import Element, SubElement, tostring

import defusedxml.ElementTree as Safe
import orjson
from defusedxml import DefusedXmlException
from fastapi import Query, Request
from starlette.responses import Response

from spark_queue.errors import OptionError
from spark_queue.events.config import local_name
from spark_queue.events.event import status_uri
from spark_queue.events.heartbeats import tick
from spark_queue.events.queue import Events
from spark_queue.rest.bodies import media_type, parse_json
from spark_queue.rest.errors import NotFound, UnsupportedMediaType
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.routes import describe_body, router
from spark_queue.rest.service import Service, ServiceDependency

routes = router("hub-queue")

#: The namespace of the elements.
NAMESPACE = "http://noslogan.org/hub-queue/event-list"

#: The supported types, in the order of preference for a caller that has none.
XML, JSON, TEXT = "text/xml", "application/json", "text/plain"
MEDIA_TYPES = {XML: XML, "application/xml": XML, JSON: JSON, TEXT: TEXT}

HubQueueForm = Annotated[
    Literal["readme", "head"],
    Query(alias="rs:format", description="The form of hub-queue's README, or of its newest code."),
]
EVENTS_RESPONSE = {"description": "XML, JSON or text.", "content": {one: {"schema": {}} for one in (XML, JSON, TEXT)}}
EVENTS_BODY = describe_body("The ids of events, as GET returns them.", XML, JSON)


@routes.get("/v1/resources/hub-queue", responses={200: EVENTS_RESPONSE})
@lane(Lane.WRITE)
async def take(
    service: ServiceDependency,
    request: Request,
    count: Annotated[
        int | None, Query(alias="rs:count", ge=0, description="Return at most this many events. Default: 10.")
    ] = None,
    form: HubQueueForm = "readme",
) -> Response:
    """Take new events: they become pending, and no other caller gets them.

    Priority first, then the oldest.
    """
    media, events = preferred_type(request), events_of(service)
    service.check_limit(count or 0, "rs:count", "event")
    taken = await service.run_in_thread(events.take, count)
    return ids_response([one.id for one in taken], media, form)


@routes.put("/v1/resources/hub-queue", responses={200: EVENTS_RESPONSE}, openapi_extra=EVENTS_BODY)
@lane(Lane.EXECUTE)
async def execute(service: ServiceDependency, request: Request, form: HubQueueForm = "readme") -> Response:
    """Execute pending events, one after the other, and return the status of each.

    An event that is not pending is not changed; one that does not exist has an empty status.
    """
    media, events = preferred_type(request), events_of(service)
    body = await service.bodies.read(request)
    ids = await service.bodies.parse(partial(parse_ids, request.headers.get("content-type", "")), body)
    service.check_body(len(ids), "event")
    statuses = await service.run_in_thread(
        events.execute,
        ids,
    )
    prefix = events.settings.status_prefix
    uris = {id: status_uri(status, prefix) if status else "" for id, status in statuses.items()}
    return statuses_response(uris, media, form)


@routes.put("/v1/resources/hub-queue-heartbeat", responses={200: EVENTS_RESPONSE})
@lane(Lane.WRITE)
async def heartbeat(
    service: ServiceDependency,
    request: Request,
    heartbeat: Annotated[str | None, Query(alias="rs:heartbeat", description="The id of the heartbeat.")] = None,
    id: Annotated[
        str | None, Query(alias="rs:id", description="The same, by the name in hub-queue's README.")
    ] = None,
    form: HubQueueForm = "readme",
) -> Response:
    """Create the events of a heartbeat, and return their ids."""
    media, events = preferred_type(request), events_of(service)
    heartbeat_id = heartbeat if heartbeat is not None else id
    if heartbeat_id is None:
        raise OptionError("Missing 'rs:heartbeat' parameter", option="rs:heartbeat")
    ids = await service.run_in_thread(tick, events, service.settings.declared.heartbeats, heartbeat_id)
    return ids_response(ids, media, form)


def events_of(service: Service) -> Events:
    """Return the queue of events, for one request. Raises `NotFound` if the server has none."""
    if service.events is None:
        raise NotFound("this server does not serve events: start it with --events NAMESPACE/QUEUE")
    return service.events.clone()


# --- types and bodies -----------------------------------------------------------------------------


def preferred_type(request: Request) -> str:
    """Return the type that the caller prefers: without a preference XML, then JSON, then text.

    Raises `UnsupportedMediaType` if the header Accept has none of them or is invalid.
    """
    accept = ",".join(request.headers.getlist("accept")) or "*/*"
    weights = {}
    for part in accept.split(","):
        media, *parameters = (one.strip().lower() for one in part.split(";"))
        weight = next((one.removeprefix("q=") for one in parameters if one.startswith("q=")), "1")
        try:
            weights[media] = float(weight)
        except ValueError:
            weights[media] = math.nan
        if not 0 <= weights[media] <= 1:
            raise UnsupportedMediaType(
                f"header Accept has {part.strip()[:60]!r}, whose weight (q=) must be a number from 0 to 1"
            )
    found = {
        one: next((weights[media] for media in (one, f"{one.partition('/')[0]}/*", "*/*") if media in weights), 0.0)
        for one in MEDIA_TYPES
    }
    best = max(found.values())
    if best <= 0:
        raise UnsupportedMediaType(f"header Accept is {accept[:60]!r} but must have one of {XML}, {JSON}, {TEXT}")
    return next(MEDIA_TYPES[one] for one, weight in found.items() if weight == best)


def parse_ids(sent: str, text: bytes) -> list[str]:
    """Return the ids in a body of the type `sent`, in either form.

    Raises `UnsupportedMediaType` for another type, `OptionError` for an invalid body.
    """
    media = MEDIA_TYPES.get(media_type(sent))
    if media == XML:
        ids = _parse_xml(text)
    elif media == JSON:
        ids = _parse_json(parse_json(text))
    else:
        raise UnsupportedMediaType(f"header Content-Type is {sent[:60]!r} but must be {XML} or {JSON}")
    found = [_id_from_uri(one) for one in ids]
    if not all(found):
        raise OptionError("the body has an event whose id is empty")
    return found


def _parse_xml(text: bytes) -> list[str]:
    try:
        root: Element = Safe.fromstring(text)
    except (Safe.ParseError, DefusedXmlException, ValueError, LookupError) as error:  # the last: its encoding
        raise OptionError(f"the body is not valid XML: {_describe_xml_error(error)}") from None
    if local_name(root) != "event-list":
        raise OptionError(f"the root element of the body is {local_name(root)!r} but must be 'event-list'")
    return [(one.text or "").strip() for one in root.iter() if local_name(one) in ("event-uri", "event-id")]


def _describe_xml_error(error: Exception) -> str:
    """Return why XML is refused. For entities, which may be an attack, it quotes no part of it."""
    if isinstance(error, DefusedXmlException):
        return "it has entities or external references, which are not allowed"
    return str(error)


def _parse_json(value: object) -> list[str]:
    if isinstance(value, Mapping):
        value = value.get("eventList")
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise OptionError('the body must be a list of ids: ["…"] or {"eventList": ["…"]}')
    ids = [one.get("id", one.get("uri")) if isinstance(one, Mapping) else one for one in value]
    if not all(isinstance(one, str) for one in ids):
        raise OptionError("the body has an id that is not a string")
    return [str(one) for one in ids]


def _id_from_uri(text: str) -> str:
    """Return an id, also from the URI of hub-queue's document: `/…/queue/<id>.xml`."""
    return text.rpartition("/")[2].removesuffix(".xml") if text.startswith("/") else text


# --- answers --------------------------------------------------------------------------------------


def ids_response(ids: Sequence[str], media: str, form: str) -> Response:
    """Return a response with ids."""
    if media == XML:
        root = Element("event-list", xmlns=NAMESPACE)
        for one in ids:
            SubElement(root, "event-uri" if form == "readme" else "event-id").text = _without_unprintable(one)
        return _xml_response(root)
    if media == JSON:
        return _response(orjson.dumps({"eventList": ids} if form == "readme" else ids), JSON)
    return _text_response(ids)


def statuses_response(statuses: Mapping[str, str], media: str, form: str) -> Response:
    """Return a response with the statuses of events."""
    if media == XML:
        names = ("result-list", "result", "event-uri", "result")
        outer, inner, id_name, name = (
            names if form == "readme" else ("event-list", "event", "event-id", "event-status")
        )
        root = Element(outer, xmlns=NAMESPACE)
        for id, status in statuses.items():
            one = SubElement(root, inner)
            SubElement(one, id_name).text = _without_unprintable(id)
            SubElement(one, name).text = _without_unprintable(status)
        return _xml_response(root)
    if media == JSON:
        id_name, name = ("uri", "result") if form == "readme" else ("id", "status")
        items: Any = [{id_name: id, name: status} for id, status in statuses.items()]
        return _response(orjson.dumps({"resultList": items} if form == "readme" else items), JSON)
    return _text_response(f"{id},{status}" for id, status in statuses.items())


def _without_unprintable(text: str) -> str:
    """Remove unprintable characters, which XML may not allow."""
    return "".join(one for one in text if one.isprintable())


def _xml_response(root: Element) -> Response:
    return _response(tostring(root, encoding="utf-8", xml_declaration=True), f"{XML}; charset=utf-8")


def _text_response(lines: Iterable[str]) -> Response:
    return _response("\r\n".join(lines).encode(), f"{TEXT}; charset=utf-8")


def _response(text: bytes, media: str) -> Response:
    return Response(text, headers={"Cache-Control": "no-store", "Content-Type": media})
