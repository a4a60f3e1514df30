"""The part of the conformance suite about spans: a queue that several tasks read."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import pushes
from spark_queue.stores.base import SMALLEST_PARTITION, Store
from spark_queue.stores.conformance.helpers import ids_of
from spark_queue.stores.conformance.waiting import MINUTE_MS
from spark_queue.stores.spans import WHOLE
from spark_queue.stores.types import View

#: Ids of a user, beside generated ones.
_ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x7f"), min_size=1, max_size=8)

#: A fill: for each push of several messages their own ids (or none), a delay and tries; how many
#: are then reserved, and how many of these committed.
_fills = st.lists(
    st.tuples(
        st.lists(_ids, max_size=12, unique=True) | st.integers(1, 40),
        st.sampled_from([None, MINUTE_MS]),
        st.integers(0, 2),
    ),
    max_size=5,
)


def ids_in_spans(store: Store, queue: str, parts: int, view: View = "messages") -> list[str]:
    """Return the ids of all spans of a queue, one span after the other."""
    spans = store.spans(queue, parts, view=view, smallest=1)
    assert 1 <= len(spans) <= parts
    return [id for span in spans for id in ids_of(store.peek(queue, view=view, span=span))]


class SpansContract:
    """Spans, which together have all messages."""

    def test_spans_have_each_message_once(self, store: Store, queue: str) -> None:
        @settings(max_examples=15, suppress_health_check=list(HealthCheck))
        @given(_fills, st.integers(0, 60), st.integers(0, 40), st.integers(1, 7))
        def check(fills: list[Any], reserved: int, committed: int, parts: int) -> None:
            own = f"{queue}.{uuid.uuid4().hex[:8]}"
            try:
                self._fill(store, own, fills, reserved, committed)
                for view in ("messages", "history"):
                    whole = ids_of(store.peek(own, view=view))
                    assert Counter(ids_in_spans(store, own, parts, view)) == Counter(whole)
            finally:
                store.drop(own)

        check()

    def _fill(self, store: Store, queue: str, fills: list[Any], reserved: int, committed: int) -> None:
        for chosen, delay, tries in fills:
            ids = new_ids(chosen) if isinstance(chosen, int) else chosen
            rows = [{"n": str(number)} for number in range(len(ids))]
            if rows:
                store.push(queue, pushes(rows, ids=ids, delay=[delay] * len(ids), tries=tries))
        if reserved:
            store.reserve(queue, "c/1", reserved)
            some = ids_of(store.fetch(queue, "c/1/0"))[:committed]
            store.commit(queue, "c/1", some, history=MINUTE_MS)

    def test_a_message_stays_in_its_span(self, store: Store, peer: Store, queue: str) -> None:
        batch = pushes([{"n": str(n)} for n in range(600)])
        store.push(queue, batch)
        spans = store.spans(queue, 4, smallest=1)
        seen = ids_of(store.peek(queue, span=spans[0]))
        peer.reserve(queue, "c/1", 300)
        gone = set(ids_of(peer.fetch(queue, "c/1/0"))[:100])
        peer.commit(queue, "c/1", list(gone))
        peer.push(queue, pushes([{"n": "new"}] * 50))
        seen += [id for span in spans[1:2] for id in ids_of(store.peek(queue, span=span))]
        peer.rollback(queue, "c/1", delay=MINUTE_MS)
        seen += [id for span in spans[2:] for id in ids_of(store.peek(queue, span=span))]
        assert max(Counter(seen).values()) == 1, "no message comes twice"
        stayed = set(batch.column("id").to_pylist()) - gone
        assert stayed <= set(seen), "each that was there all the time comes"

    def test_spans_are_about_equal_and_few_messages_are_one(self, store: Store, queue: str) -> None:
        rows = 6 * SMALLEST_PARTITION
        store.push(queue, pushes([{"n": str(n)} for n in range(rows)]))
        spans = store.spans(queue, 3)
        if len(spans) > 1:  # not a list, nor buckets
            assert len(spans) == 3 and (spans[0].low, spans[-1].high) == (None, None)
            sizes = [sum(batch.num_rows for batch in store.peek(queue, span=span)) for span in spans]
            assert sum(sizes) == rows and min(sizes) > rows / 6 and max(sizes) < rows / 2, sizes
            assert len(store.spans(queue, 100)) == 6, "none is smaller than is worth a task"
        store.push(f"{queue}.other", pushes([{"n": "1"}] * SMALLEST_PARTITION))
        assert store.spans(f"{queue}.other", 8) == [WHOLE]
        assert store.spans(queue, 1) == [WHOLE]
        assert store.spans(f"{queue}.none", 8) == [WHOLE]

    def test_messages_of_a_record_that_may_be_split_are_in_one_span(self, store: Store, queue: str) -> None:
        if "buckets" in store.unsupported:
            return
        from spark_queue.messages.buckets import Buckets

        store.push(queue, pushes(list(range(30))))
        store.layout = Buckets(10)
        store.push(queue, pushes(list(range(30))))
        assert store.spans(queue, 4, smallest=1) == [WHOLE]
