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
    bool,
    Query(description="Hold messages until commit or rollback; otherwise they are removed at once."),
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
    str | None,
    Query(description="A name for this request while it waits, to cancel it by.", max_length=200),
]
Delay = Annotated[int, Query(ge=0, le=10**13, description="How long until they are ready again (ms).")]
Handle = Annotated[str, Path(description="The `x-ks-id`, `handle` or `reservation` of a reserved message.")]


class StrictRoute(APIRoute):
    """A route that refuses unknown parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind a check of the parameter names."""
        handle = super().get_route_handler()
        known = sorted({one.alias for one in self.dependant.query_params} | set(self.dependency_parameters()))

        async def checked(request: Request) -> Response:
            unknown = [name for name in request.query_params if name not in known]
            if unknown:
                raise OptionError(
                    f"unknown parameter {unknown[0]!r}{did_you_mean(unknown[0], known) or _list_parameters(known)}",
                    option=unknown[0],
                )
            return await handle(request)

        return checked

    def dependency_parameters(self) -> list[str]:
        """Return the names of the parameters of the handler's dependencies."""
        return [one.alias for each in self.dependant.dependencies for one in each.query_params]


def _list_parameters(parameters: list[str]) -> str:
    return f"; known parameters: {', '.join(parameters)}" if parameters else "; this resource has no parameters"


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
