"""Heartbeats: events that are created again and again.

Several heartbeats may have the same id: a tick of that id creates an event for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.events.event import HEARTBEAT_SOURCE
from spark_queue.events.executors import EVENT_FILE_CONFIG, validate_name
from spark_queue.events.queue import Events


@dataclass(frozen=True)
class Heartbeat:
    """One event that a tick creates. The default source is that of heartbeats."""

    __pydantic_config__ = EVENT_FILE_CONFIG

    id: Annotated[str, Field(min_length=1)]
    type: Annotated[str, BeforeValidator(validate_name)]
    source: Annotated[str, BeforeValidator(validate_name)] = HEARTBEAT_SOURCE
    payload: Any = None
    description: str = ""


def tick(events: Events, heartbeats: Sequence[Heartbeat], id: str) -> list[str]:
    """Create the events of a heartbeat, and return their ids.

    Raises `OptionError` if there is no heartbeat with this id.
    """
    chosen = find_heartbeats(heartbeats, id)
    return [made for one in chosen for made in events.create_internal(one.source, one.type, one.payload)]


def find_heartbeats(heartbeats: Sequence[Heartbeat], id: str) -> list[Heartbeat]:
    """Return the heartbeats with an id. Raises `OptionError` if there are none."""
    chosen = [one for one in heartbeats if one.id == id]
    if not chosen:
        ids = list(dict.fromkeys(one.id for one in heartbeats))
        hint = did_you_mean(id, ids) or (f"; there are {', '.join(ids)}" if ids else "; none are declared")
        raise OptionError(f"there is no heartbeat {id!r}{hint}", heartbeat=id)
    return chosen
