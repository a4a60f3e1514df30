"""Executors to try things with: `conf/executors.yaml` and the documentation have them."""

from __future__ import annotations

from typing import Any

from spark_queue.events.event import Event


def nothing(event: Event, config: Any) -> None:
    """Does nothing: the event is finished."""


def count_uris(event: Event, config: Any) -> str | None:
    """Gives the status that `config` tells to an event about something; one about nothing is finished."""
    return str(config["status"]) if event.uris and config else None


def fail(event: Event, config: Any) -> None:
    """Fails always."""
    raise RuntimeError(f"no function works on {event.type}: it fails")
