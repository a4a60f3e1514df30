"""Queues over HTTP: `spark-queue serve`, or `create_app(Settings(...))` for a server of your own.

    GET  /q  /q/NS  /q/NS/QUEUE/status …  queues, in the form of keuss-server: queues.py, batches.py
    GET  /x  /x/NAME                      exchanges of a graph: exchanges.py
    GET  /metrics                         for Prometheus: metrics.py
    /v1/resources/hub-queue[-heartbeat]   events, in the form of hub-queue: hub_queue.py
    GET  /health  /ready                  for load balancers, without credentials: health.py
    GET  /docs  /openapi.json             the description of all resources: app.py, pages.py

Handlers parse, call, and answer; calls that may block run in threads (`service.py`). A request that
waits for a message is in a wait list and uses no thread (`waiters.py`). `auth.py` checks
credentials before any handler runs, and `errors.py` maps each error to a status.
"""

from __future__ import annotations

from spark_queue.rest.app import create_app
from spark_queue.rest.settings import Credentials, Limits, Settings

__all__ = ["Credentials", "Limits", "Settings", "create_app"]
