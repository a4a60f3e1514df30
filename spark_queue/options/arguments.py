"""Checks of the arguments of the client, with a suggestion for a wrong one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.options.masking import masked_repr
from spark_queue.options.values import MAX_COUNT

P = ParamSpec("P")
T = TypeVar("T")

#: Names from other queues and from Spark's options, with the arguments of the client that match.
_ALIASES = {
    "countdown": "delay", "delay_seconds": "delay", "eta": "mature", "when": "mature", "metadata": "headers",
    "attributes": "headers", "message_id": "id", "reserve_timeout": "lease", "visibility_timeout": "lease",
    "retries": "max_tries", "max_retries": "max_tries", "attempts": "tries", "dead": "dead_letter_queue",
    "dlq": "dead_letter_queue", "name": "queue", "wait": "timeout", "wait_timeout": "timeout", "block": "timeout",
    "count": "limit", "n": "limit", "max_messages": "limit", "batch_size": "prefetch", "error": "reason",
}  # fmt: skip


def check_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function raise `OptionError` for an unknown keyword argument, with a suggestion."""
    known = frozenset(signature(function).parameters) - {"self"}
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if not known.issuperset(kwargs):
            unknown = next(key for key in kwargs if key not in known)
            raise OptionError(f"{name}() has no argument {unknown!r}{_hint(unknown, known)}", option=unknown)
        return function(*args, **kwargs)

    return wrapper


def _hint(unknown: str, known: frozenset[str]) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", unknown).lower()
    suggestion = snake if snake in known else _ALIASES.get(snake, "")
    if suggestion in known:
        return f"; did you mean {suggestion!r}?"
    return did_you_mean(snake, known) or f"; it has {', '.join(sorted(known))}"


def check_seconds(name: str, value: object, *, minimum: float = 0.0) -> None:
    """Raise `OptionError` if an argument is not a number of seconds, `minimum` or more.

    They must end before the year 5000, as all durations must.
    """
    numbers = "a number of seconds"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) > MAX_DURATION_MS / 1000:  # it is not shown: it may have any number of digits
            raise OptionError(f"{name} must be {numbers} that end before the year 5000", option=name)
        if value >= minimum:
            return
    wanted = numbers if minimum == -math.inf else f"{numbers}, {minimum:g} or more"
    hint = "; use .total_seconds()" if type(value).__name__ == "timedelta" else ""
    raise OptionError(f"{name} must be {wanted}, not {masked_repr(value)}{hint}", option=name)


def check_count(name: str, value: object) -> None:
    """Raise `OptionError` if an argument is not a whole number, 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{name} must be a whole number, 1 or more, not {masked_repr(value)}", option=name)
    if value > MAX_COUNT:
        raise OptionError(f"{name} must be a whole number, at most {MAX_COUNT}", option=name)
