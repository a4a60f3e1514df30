"""Scores of messages that are pushed together: with their ids, they have the order of the push."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_queue.messages.buckets import rows_of
from spark_queue.messages.ids import new_ids
from spark_queue.stores.redis.keys import PARTS
from spark_queue.stores.redis.scores import score_text, scores_of

DUE = 1_795_992_574_270

dues = st.integers(DUE, DUE + 1)
messages = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), dues), min_size=1, max_size=20
)
buckets = st.lists(
    st.tuples(st.sampled_from(["a", "b", "0" * 24, "1" * 24, "0" * 24 + "!"]), st.integers(1, 5), dues),
    min_size=1,
    max_size=20,
)


def check(ids, moments):
    scores = scores_of(pa.array(ids, pa.string()), moments)
    assert [int(score) for score in scores] == moments
    rows = [(score, id.encode()) for score, id in zip(scores, ids, strict=True)]
    for (due, one), (next_due, other) in pairwise(zip(moments, rows, strict=True)):
        assert next_due != due or one < other
    assert [float(score_text(score)) for score in scores] == scores
    return scores


@given(messages)
def test_scores_and_ids_have_the_order_of_the_push(found):
    check([id for id, _ in found], [due for _, due in found])


@given(buckets)
def test_a_bucket_whose_ids_have_no_order_has_a_part_for_each_message(found):
    ids, moments = [f"\x7f{first}\x7f{rows}\x7fd+9" for first, rows, _ in found], [due for *_, due in found]
    scores = check(ids, moments)
    for (id, one, due), (_, other, next_due) in pairwise(zip(ids, scores, moments, strict=True)):
        ordered = len(id.split("\x7f")[1]) == 24
        assert ordered or due != next_due or (other - one) * PARTS == rows_of(id)


def test_generated_ids_need_no_parts():
    moments = [DUE] * 100
    assert scores_of(pa.array(new_ids(100)), moments) is moments
