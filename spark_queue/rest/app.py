"""The app: all resources of this server, behind its guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from spark_queue import __version__
from spark_queue.rest import batches, exchanges, hub_queue, queues
from spark_queue.rest.guard import Guard
from spark_queue.rest.metrics import Timed
from spark_queue.rest.problems import PROBLEM, tell_problems
from spark_queue.rest.routes import router
from spark_queue.rest.service import Served, Service
from spark_queue.rest.settings import Settings

measures = router("metrics")


@measures.get("/metrics", responses={200: {"description": "The text.", "content": {"text/plain": {}}}})
async def metrics(service: Served) -> Response:
    """All numbers, for Prometheus; those of queues are up to two seconds old."""
    return Response(await service.work(service.meters.text), media_type=CONTENT_TYPE_LATEST)


def create_app(settings: Settings) -> FastAPI:
    """The app of a server; its stores are opened when they are first used, and closed when it ends."""
    service = Service(settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="spark_queue",
        version=__version__,
        description="Queues in MongoDB, Redis and SQLite as of keuss-server, and events as of hub-queue.",
        lifespan=life,
        redirect_slashes=False,
    )
    app.state.service = service
    for one in (batches.routes, queues.routes, exchanges.routes, hub_queue.routes, measures):
        app.include_router(one)
    tell_problems(app)
    app.add_middleware(Guard, credentials=settings.credentials)
    app.add_middleware(Timed, meters=service.meters)  # the outermost
    app.openapi = lambda: _described(app, settings)  # type: ignore[method-assign]
    return app


def _described(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """The OpenAPI document: FastAPI's, with problems as they are told here, and how to say who one is."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = made.setdefault("components", {})
        parts["schemas"] = {"Problem": PROBLEM}
        most = {"n": settings.limits.messages, "rs:count": settings.limits.messages, "to": settings.limits.wait}
        for path in made["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
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
    """Say in the schema of a number, which may be missing, how large it may be."""
    for one in schema.get("anyOf", [schema]):
        if one.get("type") == "integer":
            one["maximum"] = most
