"""Which steps may start after Spark's process has died: suspects first, one at a time.

All steps of a server share one Spark process. If it dies, any step that had a batch in work may be
the reason, for example by a selector that exhausts the memory. Such a step is a *suspect*. In the
new process, suspects start alone, one after the other, and each is *on probation* until it has done
a batch. If the process dies while a single step is on probation, that step is to blame.

These rules know no clock but theirs, no Spark and no database: `shared_graph.py` applies them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

#: How long a suspect runs alone at most (s). The rules double it, up to the second number, after a
#: death for which they blame no step: the reason may need longer.
ALONE_SECONDS, MOST_ALONE_SECONDS = 10.0, 40.0

#: How long all suspects together keep the other steps waiting (s).
ALL_ALONE_SECONDS = 30.0

#: After how many deaths on probation a step is stopped.
MOST_DEATHS = 2

#: The error of a step that waits for its probation, and of one that was stopped after it.
SUSPECT_TEXT = (
    "the server's Spark process died while this exchange had messages in work: it starts again, at first alone"
)
STOPPED_TEXT = (
    f"stopped: the server's Spark process died {MOST_DEATHS} times while only this exchange was running. Look at its "
    "selectors and functions, which may exhaust the memory, then start it with PUT /x/{name}/start"
)


class Probation:
    """The suspects of a process, and the one that is on probation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alone_seconds = ALONE_SECONDS
        self._kept: dict[str, int] = {}
        self._tried: set[str] = set()
        self._current: str | None = None
        self._until = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin with a new Spark process, in which nothing runs."""
        self._tried, self._current = set(), None
        self._others_wait_until = self._clock() + max(ALL_ALONE_SECONDS, self._alone_seconds)

    # --- suspects that wait -----------------------------------------------------------------------

    @property
    def kept(self) -> Mapping[str, int]:
        """The suspects that this process keeps until they start, each with its deaths."""
        return self._kept

    def keep(self, name: str, deaths: int) -> None:
        """Keep a suspect, so that no other process starts it beside its own steps."""
        self._kept[name] = deaths

    def leave(self, name: str) -> None:
        """Forget a step, which was started, stopped or removed, or runs elsewhere."""
        self._kept.pop(name, None)
        self._tried.discard(name)
        if self._current == name:
            self._current = None

    # --- who starts -------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a step is on probation: the next one should start soon after it."""
        return self._current is not None

    def choose(self, waiting: Mapping[str, int | None]) -> list[str]:
        """Return those of these steps that start now, and put one suspect of them on probation.

        `waiting`: the steps that are to start, in order, each with its deaths if it is a suspect.
        Those that died on probation come first: then they are surely alone. The others wait for all
        suspects, also for those that are kept and cannot start yet.
        """
        others = [name for name, deaths in waiting.items() if deaths is None]
        suspects = {name: deaths for name, deaths in waiting.items() if deaths is not None}
        if self._current is None and suspects:
            self._current = max(suspects, key=suspects.__getitem__)  # the first of those with most deaths
            self._until = self._clock() + 3 * self._alone_seconds
            self._tried.add(self._current)
            self._kept.pop(self._current, None)
            chosen = [self._current]
        else:
            chosen = []
        if (self._current is not None or self._kept) and self._clock() < self._others_wait_until:
            return chosen
        self._others_wait_until = 0.0
        return others + chosen

    # --- how it ends ------------------------------------------------------------------------------

    def is_tried(self, name: str) -> bool:
        """Whether a step is on probation, or was and has not done a batch yet."""
        return name in self._tried

    def let_next(self, name: str, runs: float) -> bool:
        """Return whether a step has been alone for long enough; the next one may then start.

        `runs`: for how long its query has been running (s). Its start may take long, too.
        """
        if self._current != name or (runs < self._alone_seconds and self._clock() < self._until):
            return False
        self._current = None
        return True

    def blame(self) -> str | None:
        """Return the step that is to blame for the death of Spark's process, if one is.

        If it ran alone, the suspects that wait are none any more.
        """
        if len(self._tried) != 1:
            self._alone_seconds = min(2 * self._alone_seconds, MOST_ALONE_SECONDS)
            return None
        self._alone_seconds = ALONE_SECONDS
        return next(iter(self._tried))

    @property
    def others_wait(self) -> bool:
        """Whether nothing runs but suspects."""
        return self._others_wait_until > 0.0
