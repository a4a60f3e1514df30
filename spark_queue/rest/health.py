"""Liveness and readiness of the server, for load balancers and containers.

Both answer without credentials, so they reveal nothing else: no store, URL, version or count. The
log names the stores that cannot be reached.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from spark_queue.rest.answers import json_response
from spark_queue.rest.errors import ERROR_RESPONSES, NotReady, ShuttingDown
from spark_queue.rest.lanes import Lane, lane
from spark_queue.rest.routes import describe_json, router, viewable
from spark_queue.rest.service import ServiceDependency

routes = router("health", {status: ERROR_RESPONSES[status] for status in (400, 405, 503)})

_NO_CREDENTIALS: dict[str, Any] = {"security": []}


@routes.head("/health", include_in_schema=False)
@routes.get("/health", responses={200: describe_json("The server runs.")}, openapi_extra=_NO_CREDENTIALS)
@lane(Lane.LOCAL)
@viewable
async def health() -> Response:
    """Answer 200 while the server runs. Needs no credentials, and checks no store."""
    return json_response({"status": "ok"})


@routes.head("/ready", include_in_schema=False)
@routes.get("/ready", responses={200: describe_json("The server can work.")}, openapi_extra=_NO_CREDENTIALS)
@lane(Lane.LOCAL)
@viewable
async def ready(service: ServiceDependency) -> Response:
    """Answer 200 if all stores can be reached, and 503 otherwise or while the server shuts down.

    503, too, if the Spark session of the server has failed. Needs no credentials. The answer is up
    to a second old.
    """
    if service.wait_list.shutting_down:
        raise ShuttingDown("the server is shutting down")
    if not service.runs_its_graph:
        raise NotReady("the server's Spark has failed, and starts again if it can; the server's log has the reason")
    if not await service.readiness.ready():
        raise NotReady("a store cannot be reached: the server's log and /metrics (q_global_up) name it")
    return json_response({"status": "ready"})
