"""Find the size of the next micro-batch, in rows: the rule of `maxRecordsPerTrigger=auto`.

A batch takes a fixed time and a time per row; the last full batches show both. The next batch gets
as many rows as fit into the target, up to GROWTH times those of the last one. If the fixed time is
over half of the target, the batch gets rows for as long again: so the fixed time never dominates.
Every other batch is twice as large as the one before. Otherwise all would be alike, and would not
show which part of the time is fixed. The first batch of a process is slow, since Spark starts its
parts: it shows only whether the next one may be larger.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median

#: The rows of the first batch of a query, and the limits of later ones.
FIRST_ROWS, MIN_ROWS, MAX_ROWS = 20_000, 100, 1_000_000

#: How many times as large as the last batch the next one may be.
GROWTH = 8

#: The same after a batch whose time is unknown.
CAREFUL_GROWTH = 4

#: The factors by which batches differ, in turn, from the size that fits.
SPREAD = (4 / 3, 2 / 3)

#: Two batches differ by more than this factor if they show the time per row.
DIFFERENT = 1.5

#: How many full batches are remembered.
REMEMBERED = 8

#: By which factor the time of a batch differs from the expected one if the load of the machine, or
#: the user's code, has changed. Then earlier batches no longer count.
CHANGED = 4

#: The first batch of a process takes up to this many times the target where rows are quick. The
#: next one should not take more than LONGEST targets, even if nothing of the first was fixed.
SLOW_START, LONGEST = 3, 10


class BatchSize:
    """The size of the next batch of a query. Times are in seconds."""

    def __init__(self, target: float, rows: int = FIRST_ROWS, *, chosen: bool = False) -> None:
        """Aim at batches that take `target`. The first one has `rows`.

        `chosen`: whether they are the choice of an earlier process.
        """
        self.rows = rows  #: the limit of the next batch
        self.max_rows = MAX_ROWS  #: the most rows of the next batch
        self._target = target
        self._chosen = chosen  # whether any batch has shown a size
        self._fitting = rows  # the size from which `rows` differs by a factor of SPREAD
        self._fixed = self._per_row = 0.0  # the parts of the time of a batch
        self._batches: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)  # the last full ones: rows, seconds
        self._turn = 0

    @property
    def following(self) -> int:
        """The size of the batch after the next one, if that shows nothing new."""
        return self._spread(self._fitting) if self._chosen else min(MAX_ROWS, GROWTH * self.rows)

    def is_full(self, rows: int) -> bool:
        """Return whether a batch with this number of rows had about as many as it could."""
        return rows >= min(self._fitting, self.max_rows) / 2

    def learn_first(self, rows: int, seconds: float, *, certain: bool = True) -> None:
        """Choose the size after the first batch of a process; not if it is only perhaps slow."""
        slow = seconds / (SLOW_START * self._target)
        if self.is_full(rows) and (certain or slow < 1):
            quick = min(rows * LONGEST * self._target / seconds, self.max_rows)
            self._choose(rows / slow if slow > 1 else quick, rows)

    def learn(self, rows: int, seconds: float, target: float) -> None:
        """Choose the size after a later batch, so that the next one takes `target`."""
        if not self.is_full(rows):
            return  # the queue was nearly empty
        expected = self._fixed + self._per_row * rows
        if expected and not 1 / CHANGED < seconds / expected < CHANGED:
            self._batches.clear()
            self._fixed *= seconds / expected
            self._per_row *= seconds / expected
        self._batches.append((rows, seconds))
        self._estimate()
        self._choose(self._rows_in(target), rows)

    def grow(self, rows: int, target: float) -> None:
        """Choose a size after a batch of unknown time: a larger one, if none is known that fits."""
        if self.is_full(rows):
            self._choose(self._rows_in(target) if self._per_row else CAREFUL_GROWTH * rows, rows)

    def forget(self) -> None:
        """Forget the times of earlier batches."""
        self._batches.clear()
        self._fixed = self._per_row = 0.0

    def _rows_in(self, target: float) -> float:
        return max(target - self._fixed, self._fixed) / self._per_row

    def _estimate(self) -> None:
        """Estimate the parts of the time: per row by the median slope between two batches."""
        whole = median(seconds / rows for rows, seconds in self._batches)
        slopes = [
            (seconds - other_seconds) / (rows - other_rows)
            for (rows, seconds), (other_rows, other_seconds) in combinations(self._batches, 2)
            if max(rows, other_rows) > DIFFERENT * min(rows, other_rows)
        ]
        if slopes:
            self._per_row = median(slopes)
        elif not self._per_row:  # half of a quick batch may be fixed
            self._per_row = whole / 2 if self._batches[-1][1] < self._target else whole
        self._per_row = min(max(self._per_row, whole / 5), whole)
        self._fixed = max(0.0, median(seconds - self._per_row * rows for rows, seconds in self._batches))

    def _choose(self, fitting: float, last: int) -> None:
        self._fitting = round(max(MIN_ROWS, min(fitting, MAX_ROWS, GROWTH * last)))
        self.rows = self._spread(self._fitting)
        self._turn = (self._turn + 1) % len(SPREAD)
        self._chosen = True

    def _spread(self, rows: int) -> int:
        return min(MAX_ROWS, max(MIN_ROWS, round(rows * SPREAD[self._turn])))
