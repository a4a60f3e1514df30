"""Work queues for Spark Structured Streaming, kept in MongoDB, Redis or an embedded SQLite file.

spark.readStream.format("queue").option("url", "sqlite:///queues.db").option("queue", "flights").load()

`Queue` is the same queue for programs without Spark. Everything here is imported when it is first used, so that a
program pays for nothing it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spark_queue.buckets import Buckets
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
    from spark_queue.message import Message
    from spark_queue.operations import (
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
    from spark_queue.operations.logs import logs, trim
    from spark_queue.process import Output, Process, wrap_error
    from spark_queue.spark import delivery_hash, drain, register, session, supervise
    from spark_queue.store import open_store
    from spark_queue.store.counters import Statistics

_HOME = {
    "Buckets": "buckets",
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
    "Message": "message",
    "compact": "operations",
    "dead_letters": "operations",
    "forget_ledger": "operations",
    "history": "operations",
    "layout": "operations",
    "ledgers": "operations",
    "logs": "operations.logs",
    "recover": "operations",
    "recover_consumer": "operations",
    "redrive": "operations",
    "release": "operations",
    "replay": "operations",
    "reservations": "operations",
    "set_layout": "operations",
    "set_ledger": "operations",
    "shrink": "operations",
    "trim": "operations.logs",
    "Output": "process",
    "Process": "process",
    "wrap_error": "process",
    "delivery_hash": "spark",
    "drain": "spark",
    "register": "spark",
    "session": "spark",
    "supervise": "spark",
    "open_store": "store",
    "Statistics": "store.counters",
}

__all__ = [
    "AccessDenied",
    "Buckets",
    "CheckpointError",
    "DriverMissing",
    "Events",
    "FencedError",
    "GraphError",
    "Message",
    "MessageError",
    "OptionError",
    "Output",
    "PoolExhausted",
    "Process",
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
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
