"""Wait for a condition, not for a number of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[..., T], seconds: float = 60, pause: float = 0.02, *, what: str = "the condition") -> T:
    """Call `condition` until its result is true, and return that result.

    Raises `AssertionError` after `seconds`, which only has to be longer than any healthy machine needs.
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"{what} did not come true in {seconds} s: the last result was {result!r}"
        time.sleep(pause)
    return result
