"""Queues over HTTP: `spark-queue serve`, or `create_app(Settings(...))` for a server of your own.

    /v1/queues/NS/QUEUE/messages …       queues, our own form: v1/
    /q  /q/NS/QUEUE …                    queues, in the form of keuss-server: keuss/
    /x  /x/NAME                          exchanges, in the form of keuss-server: keuss/
    /metrics                             for Prometheus: metrics.py
    /v1/resources/hub-queue[-heartbeat]  events, in the form of hub-queue: hub_queue.py
    /health  /ready                      for load balancers, without credentials: health.py
    /docs  /openapi.json                 the description of all resources: app.py, pages.py

Handlers parse, call, and answer; calls that may block run in threads (`service.py`). A request that
waits for a message is in a wait list and uses no thread (`takes.py`, `waiters.py`). `guard/` limits
what callers may do before their credentials are checked, and checks these before any handler runs.
`errors.py` maps each error to a status.
"""

from __future__ import annotations

from spark_queue.rest.app import create_app
from spark_queue.rest.guard.credentials import Credentials
from spark_queue.rest.settings import Limits, Settings

__all__ = ["Credentials", "Limits", "Settings", "create_app"]
