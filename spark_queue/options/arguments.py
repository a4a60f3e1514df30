"""Checks of the arguments of the client, with a suggestion for a wrong one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from spark_queue.errors import OptionError, near
from spark_queue.options.masking import quoted

P = ParamSpec("P")
T = TypeVar("T")

#: Names from other queues and from Spark's options, with the arguments of the client that match.
_ELSEWHERE = {
    "countdown": "delay", "delay_seconds": "delay", "eta": "mature", "when": "mature", "metadata": "headers",
    "attributes": "headers", "message_id": "id", "reserve_timeout": "lease", "visibility_timeout": "lease",
    "retries": "max_tries", "max_retries": "max_tries", "attempts": "tries", "dead": "dead_letter_queue",
    "dlq": "dead_letter_queue", "name": "queue", "wait": "timeout", "wait_timeout": "timeout", "block": "timeout",
    "count": "limit", "n": "limit", "max_messages": "limit", "batch_size": "prefetch", "error": "reason",
}  # fmt: skip


def keywords_checked(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function raise `OptionError` for an unknown keyword argument, with a suggestion."""
    known = frozenset(signature(function).parameters) - {"self"}
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        if not known.issuperset(keywords):
            odd = next(key for key in keywords if key not in known)
            raise OptionError(f"{name}() has no argument {odd!r}{_hint(odd, known)}", option=odd)
        return function(*args, **keywords)

    return checked


def _hint(odd: str, known: frozenset[str]) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", odd).lower()
    meant = snake if snake in known else _ELSEWHERE.get(snake, "")
    if meant in known:
        return f"; did you mean {meant!r}?"
    return near(snake, known) or f"; it has {', '.join(sorted(known))}"


def check_seconds(name: str, value: object, *, least: float = 0.0) -> None:
    """Raise `OptionError` if an argument is not a number of seconds, `minimum` or more."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf
    if not sound:
        shown = quoted(value) if isinstance(value, str) else repr(value)
        hint = "; use .total_seconds()" if type(value).__name__ == "timedelta" else ""
        raise OptionError(f"{name} must be a number of seconds, {least:g} or more, not {shown}{hint}", option=name)


def check_count(name: str, value: object) -> None:
    """Raise `OptionError` if an argument is not a whole number, 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = quoted(value) if isinstance(value, str) else repr(value)
        raise OptionError(f"{name} must be a whole number, 1 or more, not {shown}", option=name)
