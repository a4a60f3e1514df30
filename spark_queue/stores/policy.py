"""The policy of a queue: what a program asks of it.

A policy is frozen, and each field knows whether it was given: a field that was not given is
`NOT_GIVEN`. So a setting that is stored with the queue has effect where a program asked for
nothing: what was given > what is stored > the default.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final, Literal, Self, TypeVar

from spark_queue.messages.buckets import Buckets, Layout
from spark_queue.options.queue_names import check_dead_letter_queue
from spark_queue.stores.types import check_duration

T = TypeVar("T")


class NotGiven(Enum):
    """The type of `NOT_GIVEN`."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return self.name


#: The value of a field or an argument that was not given. `None` has a meaning of its own.
NOT_GIVEN: Final = NotGiven.NOT_GIVEN


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed message is due again: after `base * growth ** tries + step * tries`.

    `tries`: its failures before this one. The delay is at most `longest`, unless that is `None`.
    All are in one unit, which the owner chooses. `services/retry.py` has the formula.
    """

    base: float = 0
    growth: int = 1
    step: float = 0
    longest: float | None = None


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What a program asks of a queue. Durations are ms.

    `lease`: how long a reservation lasts (`None`: until it is settled; default 120 s).
    `max_tries`: failures after which a message is a dead letter (`None`, the default: never).
    `dead_letter_queue`: where such messages and damaged records go (default `<queue>.dead`).
    `history`: how long settled messages are kept (default 0). `layout`: `Buckets()` or `"single"`
    for pushed messages (default: the setting of the queue). `retry`: when a message that failed
    alone is due again (default: at once).
    """

    lease: int | NotGiven | None = NOT_GIVEN
    max_tries: int | NotGiven | None = NOT_GIVEN
    dead_letter_queue: str | NotGiven = NOT_GIVEN
    history: int | NotGiven = NOT_GIVEN
    layout: Buckets | Literal["single"] | NotGiven = NOT_GIVEN
    retry: RetryPolicy | NotGiven = NOT_GIVEN

    def __post_init__(self) -> None:
        """Raise `OptionError` for a negative duration."""
        for name in ("lease", "history"):
            value = getattr(self, name)
            check_duration(name, None if value is NOT_GIVEN else value)

    def replace(self, **given: Any) -> Self:
        """Return the policy with other values."""
        return replace(self, **given)

    def check(self, queue: str) -> None:
        """Raise `OptionError` if the dead-letter queue cannot be that of `queue`."""
        if self.dead_letter_queue is not NOT_GIVEN:
            check_dead_letter_queue(queue, self.dead_letter_queue, "dead_letter_queue")

    def __repr__(self) -> str:
        given = [(one.name, getattr(self, one.name)) for one in fields(self)]
        return f"QueuePolicy({', '.join(f'{name}={one!r}' for name, one in given if one is not NOT_GIVEN)})"


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The settings that are stored with a queue. `layout`: of pushed messages, `None`: single."""

    layout: Layout = None


def given_or(value: T | NotGiven, default: T) -> T:
    """Return a value, or the default if it was not given."""
    return default if isinstance(value, NotGiven) else value
