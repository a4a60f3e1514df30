"""What all resources share: parameters, and that a parameter which nobody knows is refused.

A call with `?dealy=5` would else push at once, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from spark_queue.errors import OptionError, near
from spark_queue.rest.problems import ANSWERS

Namespace = Annotated[str, Path(alias="ns", description="The name of a namespace.", max_length=200)]
QueueName = Annotated[
    str, Path(alias="queue", description="The name of a queue; it is made by its first push.", max_length=200)
]
Reserve = Annotated[
    bool,
    Query(description="Hold what is taken until it is committed or rolled back; else it is removed at once."),
]
Wait = Annotated[int, Query(alias="to", ge=0, description="Wait so many ms for the first message.")]
Lease = Annotated[
    int | None,
    Query(ge=100, le=10**13, description="They are held so many ms. Default: `reserveTimeout` of the namespace."),
]
HeldFor = Annotated[
    str | None,
    Query(
        description="A name for who holds them, which tools show as `rest:NAME`.", pattern="^[A-Za-z0-9_.:@-]{1,95}$"
    ),
]
Tid = Annotated[
    str | None,
    Query(description="A name for this request while it waits, by which it can be cancelled.", max_length=200),
]
Delay = Annotated[int, Query(ge=0, le=10**13, description="They can be taken again after so many ms.")]
Handle = Annotated[str, Path(description="What the reservation gave as `x-ks-id`, `handle` or `reservation`.")]


class Route(APIRoute):
    """A route that knows all its parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Look at their names before the handler is called."""
        handle = super().get_route_handler()
        known = sorted({one.alias for one in self.dependant.query_params} | set(self.more()))

        async def checked(request: Request) -> Response:
            odd = [name for name in request.query_params if name not in known]
            if odd:
                raise OptionError(f"there is no parameter {odd[0]!r} here{near(odd[0], known)}", option=odd[0])
            return await handle(request)

        return checked

    def more(self) -> list[str]:
        """Parameters that a dependency of the handler takes."""
        return [one.alias for each in self.dependant.dependencies for one in each.query_params]


def router(tag: str) -> APIRouter:
    """A router for resources that belong together."""
    return APIRouter(route_class=Route, tags=[tag], responses=ANSWERS)


def body(description: str, *types: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the OpenAPI page says of a body that the handler reads itself."""
    content: dict[str, Any] = {one: {"schema": schema or {}} for one in types}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def json_answer(description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the page says of an answer in JSON."""
    return {"description": description, "content": {"application/json": {"schema": schema or {"type": "object"}}}}
