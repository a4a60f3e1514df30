"""Cut the records of a queue into spans, so that several tasks can read it at the same time.

A store cuts at places in an order in which no record ever moves: that of ids, not that of
maturity. So a message stays in its span, whatever happens to it, until it leaves the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

#: How many places of records a store reads for each part, and most for all. With two parts, each
#: then has 46 to 54 % of the records.
PLACES_PER_PART, MAX_PLACES = 300, 2_000

#: A queue with at most this multiple of that number of records is read by its index. Then the
#: sample of a larger one is less than 5 % of it: MongoDB takes it without a scan.
INDEX_WALK = 25

#: In a sample of a table that several queues share, at least this part must be of the queue.
OWN_SHARE = 0.25


class Span(NamedTuple):
    """A range of records: from the place `low` to before the place `high`; `None`: to the end.

    The store chooses what a place is. It can be pickled.
    """

    low: Any = None
    high: Any = None


#: All records.
WHOLE = Span()


class Sample(NamedTuple):
    """Places of some records, different ones in order, and about how many records there are."""

    places: Sequence[Any] = ()
    records: int = 0


def sample_size(parts: int) -> int:
    """Return how many places a store reads to cut a queue into this number of parts."""
    return min(PLACES_PER_PART * parts, MAX_PLACES)


def cut_spans(sample: Sample, parts: int, smallest: int) -> list[Span]:
    """Return up to `parts` spans of about the same size, in order.

    There is one for each `smallest` records, and at least one.
    """
    places = sample.places
    number = max(1, min(parts, -(-sample.records // smallest), len(places)))
    cuts = [places[len(places) * part // number] for part in range(1, number)]
    return [Span(*ends) for ends in pairwise([None, *cuts, None])]
