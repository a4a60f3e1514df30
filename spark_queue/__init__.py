"""Work queues for Spark Structured Streaming, kept in MongoDB, Redis or an embedded SQLite file.

spark.readStream.format("queue").option("url", "sqlite:///queues.db").option("queue", "flights").load()

`Queue` is the client for programs without Spark. Each name is imported when it is first used, so a
program does not load what it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spark_queue.admin import (
        compact,
        dead_letters,
        forget_ledger,
        history,
        layout,
        ledgers,
        recover,
        recover_consumer,
        redrive,
        release,
        replay,
        reservations,
        set_layout,
        set_ledger,
        shrink,
    )
    from spark_queue.admin.logs import logs, trim
    from spark_queue.client import Queue, QueueSizes
    from spark_queue.errors import (
        AccessDenied,
        CheckpointError,
        DriverMissing,
        FencedError,
        GraphError,
        MessageError,
        OptionError,
        PoolExhausted,
        QueueError,
        SchemaError,
        StoreError,
        StoreUnavailable,
        UsageError,
    )
    from spark_queue.events import Events
    from spark_queue.graph.processor_function import Output, ProcessorContext, wrap_error
    from spark_queue.messages.buckets import Buckets
    from spark_queue.messages.message import Message
    from spark_queue.runner import ExchangeGraph
    from spark_queue.spark import delivery_hash, drain, register, session, supervise
    from spark_queue.stores import open_store
    from spark_queue.stores.support.counters import Statistics

_MODULES = {
    "Buckets": "messages.buckets",
    "Queue": "client",
    "QueueSizes": "client",
    "AccessDenied": "errors",
    "CheckpointError": "errors",
    "DriverMissing": "errors",
    "FencedError": "errors",
    "GraphError": "errors",
    "MessageError": "errors",
    "OptionError": "errors",
    "PoolExhausted": "errors",
    "QueueError": "errors",
    "SchemaError": "errors",
    "StoreError": "errors",
    "StoreUnavailable": "errors",
    "UsageError": "errors",
    "Events": "events",
    "ExchangeGraph": "runner",
    "Message": "messages.message",
    "compact": "admin",
    "dead_letters": "admin",
    "forget_ledger": "admin",
    "history": "admin",
    "layout": "admin",
    "ledgers": "admin",
    "logs": "admin.logs",
    "recover": "admin",
    "recover_consumer": "admin",
    "redrive": "admin",
    "release": "admin",
    "replay": "admin",
    "reservations": "admin",
    "set_layout": "admin",
    "set_ledger": "admin",
    "shrink": "admin",
    "trim": "admin.logs",
    "Output": "graph.processor_function",
    "Process": "graph.processor_function",
    "wrap_error": "graph.processor_function",
    "delivery_hash": "spark",
    "drain": "spark",
    "register": "spark",
    "session": "spark",
    "supervise": "spark",
    "open_store": "stores",
    "Statistics": "stores.support.counters",
}

__all__ = [
    "AccessDenied",
    "Buckets",
    "CheckpointError",
    "DriverMissing",
    "Events",
    "ExchangeGraph",
    "FencedError",
    "GraphError",
    "Message",
    "MessageError",
    "OptionError",
    "Output",
    "PoolExhausted",
    "ProcessorContext",
    "Queue",
    "QueueError",
    "QueueSizes",
    "SchemaError",
    "Statistics",
    "StoreError",
    "StoreUnavailable",
    "UsageError",
    "compact",
    "dead_letters",
    "delivery_hash",
    "drain",
    "forget_ledger",
    "history",
    "layout",
    "ledgers",
    "logs",
    "open_store",
    "recover",
    "recover_consumer",
    "redrive",
    "register",
    "release",
    "replay",
    "reservations",
    "session",
    "set_layout",
    "set_ledger",
    "shrink",
    "supervise",
    "trim",
    "wrap_error",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
