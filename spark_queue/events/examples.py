"""Sample executors, for `conf/executors.yaml` and the documentation."""

from __future__ import annotations

from typing import Any

from spark_queue.events.event import Event


def nothing(event: Event, config: Any) -> None:
    """Do nothing: the event is finished."""


def count_uris(event: Event, config: Any) -> str | None:
    """Return the status in `config` for an event with URIs; an event without URIs is finished."""
    return str(config["status"]) if event.uris and config else None


def fail(event: Event, config: Any) -> None:
    """Fail every event: raise `RuntimeError`."""
    raise RuntimeError(f"this sample executor fails every event; this one has the type {event.type}")
