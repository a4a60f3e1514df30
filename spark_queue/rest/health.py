"""Liveness and readiness of the server, for load balancers and containers.

Both answer without credentials, so they reveal nothing else: no store, URL, version or count. The
log names the stores that cannot be reached.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from spark_queue.rest.errors import ANSWERS, Ending, NotReady
from spark_queue.rest.payloads import answer
from spark_queue.rest.routes import json_answer, router
from spark_queue.rest.service import Served

routes = router("health", {status: ANSWERS[status] for status in (400, 405, 503)})

_ANYBODY: dict[str, Any] = {"security": []}


@routes.head("/health", include_in_schema=False)
@routes.get("/health", responses={200: json_answer("The server runs.")}, openapi_extra=_ANYBODY)
async def health() -> Response:
    """Answer 200 while the server runs. Needs no credentials, and checks no store."""
    return answer({"status": "ok"})


@routes.head("/ready", include_in_schema=False)
@routes.get("/ready", responses={200: json_answer("The server can work.")}, openapi_extra=_ANYBODY)
async def ready(service: Served) -> Response:
    """Answer 200 if all stores can be reached, and 503 otherwise or while the server shuts down.

    Needs no credentials. The answer is up to a second old.
    """
    if service.lines.ending:
        raise Ending("the server is shutting down")
    if not await service.readiness.ready():
        raise NotReady("a store cannot be reached: the server's log and /metrics (q_global_up) name it")
    return answer({"status": "ready"})
