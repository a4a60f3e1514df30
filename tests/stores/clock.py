"""A clock that moves only when a test says so, with timers that ring by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Clock:
    """Replaces `time` and `threading.Timer` in a module: `Clock(monkeypatch, signals)`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self._now = 1_000.0
        self._timers: list[Timer] = []
        if hasattr(module, "time"):
            monkeypatch.setattr(module, "time", self)
        if hasattr(module, "threading"):
            monkeypatch.setattr(module, "threading", SimpleNamespace(**vars(threading) | {"Timer": self._timer}))

    def monotonic(self) -> float:
        """Return the seconds that tests have let pass."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let seconds pass: call the timers that end meanwhile, in order, in this thread."""
        end = self._now + seconds
        while due := [one for one in self._timers if one.at <= end]:
            first = min(due, key=lambda one: one.at)
            self._timers.remove(first)
            self._now = max(self._now, first.at)
            first.call(*first.arguments)
        self._now = end

    def _timer(self, seconds: float, call: Callable[..., object], args: Sequence[Any] = ()) -> Timer:
        return Timer(self._timers, self._now + seconds, call, args)


@dataclass(eq=False)
class Timer:
    """A timer that rings by a `Clock`."""

    timers: list[Timer]
    at: float
    call: Callable[..., object]
    arguments: Sequence[Any]
    daemon: bool = field(default=False)

    def start(self) -> None:
        self.timers.append(self)

    def cancel(self) -> None:
        if self in self.timers:
            self.timers.remove(self)
