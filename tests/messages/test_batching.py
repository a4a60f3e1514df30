"""Things in groups that are not too large."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_queue.messages.batching import batch_by_size

ROWS, BYTES = 10, 100


def sums(group):
    return tuple(map(sum, zip(*group, strict=True)))


@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 140))))
def test_groups_hold_what_fits_and_no_less(items):
    groups = list(batch_by_size(items, (ROWS, BYTES), lambda item: item))
    assert [item for group in groups for item in group] == items, "all of them, in order"
    for group in groups:
        rows, size = sums(group)
        assert (rows <= ROWS and size <= BYTES) or len(group) == 1, "what is too large stands alone"
    for group, after in pairwise(groups):
        rows, size = sums([*group, after[0]])
        assert rows > ROWS or size > BYTES, "the first of the next had no room"
