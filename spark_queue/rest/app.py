"""The ASGI app: all resources of this server, behind authentication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from spark_queue import __version__
from spark_queue.rest import health, hub_queue
from spark_queue.rest.entrance import Entrance
from spark_queue.rest.errors import PROBLEM_SCHEMA, add_error_handlers
from spark_queue.rest.guard.auth import OPEN_PATHS, AuthMiddleware
from spark_queue.rest.keuss import exchanges
from spark_queue.rest.keuss import messages as keuss_messages
from spark_queue.rest.keuss import queues as keuss_queues
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.metrics import TimingMiddleware
from spark_queue.rest.pages import ContentPolicyMiddleware
from spark_queue.rest.routes import router, viewable
from spark_queue.rest.service import Service, ServiceDependency
from spark_queue.rest.settings import Settings
from spark_queue.rest.v1 import messages, outcomes, queues

metrics_routes = router("metrics", strict=False)

#: The resources, in the order of the pages.
ROUTERS = (
    queues.routes, messages.routes, outcomes.routes, keuss_queues.routes, keuss_messages.routes, exchanges.routes,
    hub_queue.routes, metrics_routes, health.routes,
)  # fmt: skip


@metrics_routes.get("/metrics", responses={200: {"description": "The metrics.", "content": {"text/plain": {}}}})
@lane(Lane.METRICS)
@viewable
async def metrics(service: ServiceDependency) -> Response:
    """Return all metrics, for Prometheus. The header `Age` says how old they are (s).

    They are up to two seconds old; older if it takes longer to read those of all queues.
    """
    text, age = await service.scrapes.get()
    return Response(text, media_type=CONTENT_TYPE_LATEST, headers={"Age": str(round(age))})


def create_app(settings: Settings, *, look_process: bool = False) -> FastAPI:
    """Return the app of a server. It opens a store at its first use, and closes all at shutdown.

    With `look_process`, which needs POSIX, calls that only look run in a process of their own, so
    that they take no time from the others. It starts at the first of them.
    """
    service = Service(settings, look_process=look_process)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    # Swagger UI and ReDoc from an installed package: the pages work without internet.
    app = FastAPIOffline(
        static_url="/docs/static",
        title="spark_queue",
        version=__version__,
        description="Queues in MongoDB, Redis and SQLite, also as keuss-server has them, and events as in hub-queue.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    routes = [route for one in ROUTERS for route in one.routes]
    app.router.routes.extend(routes)  # `include_router` would look for a route in each router in turn
    add_error_handlers(app, routes)
    app.add_middleware(ContentPolicyMiddleware)
    open_paths = OPEN_PATHS | {"/metrics"} if settings.open_metrics else OPEN_PATHS
    app.add_middleware(AuthMiddleware, credentials=settings.credentials, open_paths=open_paths)
    app.add_middleware(Entrance)
    app.add_middleware(TimingMiddleware, meters=service.metrics)  # the outermost
    app.openapi = lambda: _build_openapi(app, settings)  # type: ignore[method-assign]
    return app


def _build_openapi(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document with our problem documents and the kinds of credentials."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = document.setdefault("components", {})
        components["schemas"] = {"Problem": PROBLEM_SCHEMA}
        limits = {"limit": settings.limits.messages, "rs:count": settings.limits.messages}
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                if not settings.credentials:
                    operation.pop("security", None)  # no resource needs credentials
                for one in operation.get("parameters", ()):
                    if one["name"] in limits:
                        _set_maximum(one["schema"], limits[one["name"]])
        schemes = {"basic": settings.credentials.users, "bearer": settings.credentials.tokens}
        components["securitySchemes"] = {
            way: {"type": "http", "scheme": way} for way, digests in schemes.items() if digests
        }
        if components["securitySchemes"]:
            document["security"] = [{way: []} for way in components["securitySchemes"]]
        app.openapi_schema = document
    return app.openapi_schema


def _set_maximum(schema: dict[str, Any], limit: int) -> None:
    """Set the maximum in the schema of a number, which may be optional."""
    for one in schema.get("anyOf", [schema]):
        if one.get("type") == "integer":
            one["maximum"] = limit
