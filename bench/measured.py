"""What it took to push or to drain messages. Only the standard library: the programs of peers import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Measured:
    """`rate` in messages per second; CPU seconds for a million messages, of client and server; bytes of memory."""

    rate: float
    client: float
    server: float
    peak: int

    @classmethod
    def of(cls, n: int, *, seconds: float, client: float, server: float, peak: int) -> Self:
        """What `n` messages took, by the clock and in CPU seconds."""
        return cls(n / seconds, client / n * 1e6, server / n * 1e6, peak)
