"""Groups of resources, the parameters that they share, and what each route checks first.

A route is for operators, unless its handler is marked as `viewable`. Its lane, which every handler
declares, decides which threads and limits it has: see `lanes.py`. A strict route refuses unknown
parameters: without that, a push with `?dealy=5` would succeed, and the message would be ready at
once. Routes in the form of another server ignore them, as that server does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.rest.errors import ERROR_RESPONSES, NotAllowed
from spark_queue.rest.guard.caller import caller_of
from spark_queue.rest.guard.credentials import CallerRole
from spark_queue.rest.lanes import Call, lane_of, set_current_call

F = TypeVar("F", bound=Callable[..., object])

NamespaceName = Annotated[str, Path(alias="ns", description="The name of a namespace.", max_length=200)]
QueueName = Annotated[
    str, Path(alias="queue", description="The name of a queue; its first push creates it.", max_length=200)
]

#: The form of the name of a consumer over HTTP.
CONSUMER_PATTERN = "^[A-Za-z0-9_.:@-]{1,95}$"


def viewable(handler: F) -> F:
    """Mark a handler that changes nothing: viewers may call it."""
    handler.viewable = True  # type: ignore[attr-defined]
    return handler


class CheckedRoute(APIRoute):
    """A route that checks the role of the caller, and has a lane."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route is for a request. Most are not, and these end here, fast."""
        path = scope["path"]
        if path.count("/") != self.path.count("/") or not path.startswith(self.path.partition("{")[0]):
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind the check. Raises `TypeError` if it declares no lane."""
        handle = super().get_route_handler()
        is_viewable, lane = getattr(self.endpoint, "viewable", False), lane_of(self.endpoint)

        async def checked(request: Request) -> Response:
            if not is_viewable and request.state.role is not CallerRole.OPERATOR:
                raise NotAllowed(f"a {request.state.role} may only look: this call needs the role operator")
            set_current_call(Call(lane, caller_of(request), request.is_disconnected))
            try:
                return await handle(request)
            finally:
                request.app.state.service.bodies.release(request)

        return checked


class StrictRoute(CheckedRoute):
    """A route that also refuses unknown parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind a check of the parameter names."""
        handle = super().get_route_handler()
        own = (self.dependant, *self.dependant.dependencies)
        known = sorted({one.alias for each in own for one in each.query_params})

        async def checked(request: Request) -> Response:
            check_names(request.query_params, known, "parameter", "this resource")
            return await handle(request)

        return checked


def check_names(given: Iterable[str], known: Sequence[str], noun: str, owner: str) -> None:
    """Raise `OptionError` for the first given name that is not known. `noun`: what it names."""
    for name in given:
        if name not in known:
            listed = f"; known {noun}s: {', '.join(known)}" if known else f"; {owner} has no {noun}s"
            raise OptionError(f"unknown {noun} {name[:100]!r}{did_you_mean(name, known) or listed}", option=name)


def router(tag: str, answers: dict[int | str, dict[str, Any]] = ERROR_RESPONSES, *, strict: bool = True) -> APIRouter:
    """Return a router for a group of resources; `answers`: their error responses, for OpenAPI."""
    return APIRouter(route_class=StrictRoute if strict else CheckedRoute, tags=[tag], responses=answers)


def describe_body(
    description: str, *types: str, schema: dict[str, Any] | None = None, required: bool = True
) -> dict[str, Any]:
    """Return the OpenAPI description of a body that the handler reads itself."""
    content: dict[str, Any] = {one: {"schema": schema or {}} for one in types}
    return {"requestBody": {"required": required, "description": description, "content": content}}


def describe_json(description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON response."""
    return {
        "description": description,
        "content": {"application/json": {"schema": {"type": "object"} if schema is None else schema}},
    }
