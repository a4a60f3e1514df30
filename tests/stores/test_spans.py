"""Spans of queues that are a small part of a table or a collection: see the conformance suite for others."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_queue.messages.message import pushes
from spark_queue.stores import spans
from spark_queue.stores.conformance.helpers import ids_of
from spark_queue.stores.conformance.waiting import MINUTE_MS
from spark_queue.stores.mongodb import sampling as of_mongodb
from spark_queue.stores.spans import WHOLE, Sample, Span, cut_spans
from spark_queue.stores.sqlite import sampling as of_sqlite


@pytest.fixture(autouse=True)
def _all_queues_are_large(monkeypatch):
    monkeypatch.setattr(spans, "PLACES_PER_PART", 10)
    monkeypatch.setattr(of_sqlite, "INDEX_WALK", 2)
    monkeypatch.setattr(of_mongodb, "INDEX_WALK", 2)


def sizes(store, queue, parts, view="messages"):
    """Return the sizes of the spans of a queue, which have each message once."""
    cut = store.spans(queue, parts, view=view, smallest=1)
    found = [ids_of(store.peek(queue, view=view, span=span)) for span in cut]
    assert Counter(id for some in found for id in some) == Counter(ids_of(store.peek(queue, view=view)))
    return [len(some) for some in found]


@pytest.mark.every_store
def test_a_small_part_of_the_records_is_cut_too(store, name):
    other = f"{name}.other"
    store.push(name, pushes([{"n": n} for n in range(150)]))
    for _ in range(3):
        store.push(other, pushes([{"n": n} for n in range(1_000)]))
    store.push(name, pushes([{"n": n} for n in range(150)]))
    found = sizes(store, name, 3)
    assert len(found) == 3 and min(found) > 30, found
    store.reserve(other, "c/1", 2_900)
    store.commit(other, "c", history=MINUTE_MS)
    for view, rows in (("messages", 100), ("history", 2_900)):
        found = sizes(store, other, 3, view)
        assert len(found) == 3 and sum(found) == rows and min(found) > rows / 10, found


def test_a_sample_is_cut_into_equal_parts():
    assert cut_spans(Sample(), 3, 1) == [WHOLE]
    assert cut_spans(Sample(list("abcdef"), 60), 3, 1) == [Span(None, "c"), Span("c", "e"), Span("e", None)]
    assert cut_spans(Sample(list("abcdef"), 60), 3, 30) == [Span(None, "d"), Span("d", None)]
    assert cut_spans(Sample(list("ab"), 60), 9, 1) == [Span(None, "b"), Span("b", None)]
