"""The result of a push or drain. Standard library only, because the programs of peers import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Measured:
    """Messages per second, CPU seconds of client and server per million messages, peak bytes."""

    rate: float
    client: float
    server: float
    peak: int

    @classmethod
    def of(cls, n: int, *, seconds: float, client: float, server: float, peak: int) -> Self:
        """Return the result for `n` messages from seconds, CPU seconds and bytes of memory."""
        return cls(n / seconds, client / n * 1e6, server / n * 1e6, peak)
