"""Modules that commands call, imported at their first use: so `--help` and completion start fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_queue import buckets, events, message, operations, options, store
    from spark_queue.operations import by_hand, doctor, levels, logs
else:

    class _Late:
        """A module that is imported at its first use."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    buckets = _Late("spark_queue.buckets")
    by_hand = _Late("spark_queue.operations.by_hand")
    doctor = _Late("spark_queue.operations.doctor")
    events = _Late("spark_queue.events")
    levels = _Late("spark_queue.operations.levels")
    logs = _Late("spark_queue.operations.logs")
    message = _Late("spark_queue.message")
    operations = _Late("spark_queue.operations")
    options = _Late("spark_queue.options")
    store = _Late("spark_queue.store")

__all__ = ["buckets", "by_hand", "doctor", "events", "levels", "logs", "message", "operations", "options", "store"]
