"""Parameters that resources share, and the check that refuses unknown ones.

Without it, a push with `?dealy=5` would succeed, and the message would be ready at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.rest.errors import ERROR_RESPONSES

NamespaceName = Annotated[str, Path(alias="ns", description="The name of a namespace.", max_length=200)]
QueueName = Annotated[
    str, Path(alias="queue", description="The name of a queue; its first push creates it.", max_length=200)
]
Reserve = Annotated[
    bool, Query(description="Hold messages until commit or rollback; otherwise they are removed at once.")
]
Wait = Annotated[int, Query(alias="to", ge=0, description="How long to wait for the first message (ms).")]
Lease = Annotated[
    int | None,
    Query(ge=100, le=10**13, description="How long they are held (ms). Default: `reserveTimeout` of the namespace."),
]
ConsumerName = Annotated[
    str | None,
    Query(
        description="A name for the consumer, which tools show as `rest:NAME`.", pattern="^[A-Za-z0-9_.:@-]{1,95}$"
    ),
]
Tid = Annotated[
    str | None, Query(description="A name for this request while it waits, to cancel it by.", max_length=200)
]
Delay = Annotated[int, Query(ge=0, le=10**13, description="How long until they are ready again (ms).")]
Handle = Annotated[str, Path(description="The `x-ks-id`, `handle` or `reservation` of a reserved message.")]


class StrictRoute(APIRoute):
    """A route that refuses unknown parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind a check of the parameter names."""
        handle = super().get_route_handler()
        own = (self.dependant, *self.dependant.dependencies)
        known = sorted({one.alias for each in own for one in each.query_params})
        listed = f"; known parameters: {', '.join(known)}" if known else "; this resource has no parameters"

        async def checked(request: Request) -> Response:
            for name in request.query_params:
                if name not in known:
                    hint = did_you_mean(name, known) or listed
                    raise OptionError(f"unknown parameter {name!r}{hint}", option=name)
            return await handle(request)

        return checked


def router(tag: str, answers: dict[int | str, dict[str, Any]] = ERROR_RESPONSES) -> APIRouter:
    """Return a router for a group of resources; `answers`: their error responses, for OpenAPI."""
    return APIRouter(route_class=StrictRoute, tags=[tag], responses=answers)


def describe_body(description: str, *types: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the OpenAPI description of a body that the handler reads itself."""
    content: dict[str, Any] = {one: {"schema": schema or {}} for one in types}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def describe_json(description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON response."""
    return {"description": description, "content": {"application/json": {"schema": schema or {"type": "object"}}}}
