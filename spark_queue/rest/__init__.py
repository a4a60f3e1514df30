"""Queues over HTTP: `spark-queue serve`, or `create_app(Settings(...))` for a server of your own.

    GET  /q  /q/NS  /q/NS/QUEUE/status …       queues, in the form of keuss-server: queues.py, batches.py
    GET  /x  /x/NAME                           exchanges of a graph: exchanges.py
    GET  /metrics                              for Prometheus: metrics.py
    /v1/resources/hub-queue[-heartbeat]        events, in the form of hub-queue: hub_queue.py
    GET  /docs  /openapi.json                  all of it, told

Handlers parse, call, and answer; what they call may block, and does so in threads (`service.py`). Whoever waits for a
message costs a place in a line, not a thread (`lines.py`). Who may call, and from where, is decided before any of
them (`guard.py`), and an error becomes a status in one table (`problems.py`).
"""

from __future__ import annotations

from spark_queue.rest.app import create_app
from spark_queue.rest.settings import Credentials, Limits, Settings

__all__ = ["Credentials", "Limits", "Settings", "create_app"]
