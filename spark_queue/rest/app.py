"""The ASGI app: all resources of this server, behind authentication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from spark_queue import __version__
from spark_queue.rest import batches, exchanges, health, hub_queue, queues
from spark_queue.rest.auth import Guard
from spark_queue.rest.errors import PROBLEM, answer_with_problems
from spark_queue.rest.metrics import Timed
from spark_queue.rest.pages import app_with_pages
from spark_queue.rest.routes import router
from spark_queue.rest.service import Served, Service
from spark_queue.rest.settings import Settings

measures = router("metrics")


@measures.get("/metrics", responses={200: {"description": "The metrics.", "content": {"text/plain": {}}}})
async def metrics(service: Served) -> Response:
    """Return all metrics, for Prometheus; those of queues are up to two seconds old."""
    return Response(await service.work(service.meters.text), media_type=CONTENT_TYPE_LATEST)


def create_app(settings: Settings) -> FastAPI:
    """Return the app of a server. It opens a store at its first use, and closes all at shutdown."""
    service = Service(settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = app_with_pages(
        title="spark_queue",
        version=__version__,
        description="Queues in MongoDB, Redis and SQLite as in keuss-server, and events as in hub-queue.",
        lifespan=life,
        redirect_slashes=False,
    )
    app.state.service = service
    routers = (batches.routes, queues.routes, exchanges.routes, hub_queue.routes, measures, health.routes)
    for one in routers:
        app.include_router(one)
    answer_with_problems(app, [route for one in routers for route in one.routes])
    app.add_middleware(Guard, credentials=settings.credentials)
    app.add_middleware(Timed, meters=service.meters)  # the outermost
    app.openapi = lambda: _described(app, settings)  # type: ignore[method-assign]
    return app


def _described(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document: FastAPI's, with our problem documents and the kinds of credentials."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = made.setdefault("components", {})
        parts["schemas"] = {"Problem": PROBLEM}
        most = {"n": settings.limits.messages, "rs:count": settings.limits.messages, "to": settings.limits.wait}
        for path in made["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                if not settings.credentials:
                    operation.pop("security", None)  # no resource needs credentials
                for one in operation.get("parameters", ()):
                    if one["name"] in most:
                        _bound(one["schema"], most[one["name"]])
        ways = {"basic": settings.credentials.users, "bearer": settings.credentials.tokens}
        parts["securitySchemes"] = {way: {"type": "http", "scheme": way} for way, known in ways.items() if known}
        if parts["securitySchemes"]:
            made["security"] = [{way: []} for way in parts["securitySchemes"]]
        app.openapi_schema = made
    return app.openapi_schema


def _bound(schema: dict[str, Any], most: int) -> None:
    """Set the maximum in the schema of a number, which may be optional."""
    for one in schema.get("anyOf", [schema]):
        if one.get("type") == "integer":
            one["maximum"] = most
