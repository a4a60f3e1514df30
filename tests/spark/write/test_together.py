"""How batches of Spark's come to be written: together, and one behind the other."""

from __future__ import annotations

import threading
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue.spark import encode
from spark_queue.spark.worker import BackgroundWriter


def numbered(sizes, width=1):
    """Batches of these many rows, numbered from the first to the last."""
    start = 0
    for size in sizes:
        texts = [f"{number:0{width}}" for number in range(start, start + size)]
        yield pa.RecordBatch.from_arrays([pa.array(texts)], names=["payload"])
        start += size


@given(st.lists(st.integers(0, 120), max_size=12))
def test_small_batches_go_together_and_keep_their_order(sizes):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encode, "COALESCED_ROWS", 100)  # of a Spark task
        found = [batch.column("payload").to_pylist() for batch in encode.coalesce_batches(numbered(sizes))]
    assert [text for texts in found for text in texts] == [str(number) for number in range(sum(sizes))]
    assert all(found), "none is empty"
    assert all(len(texts) <= 100 or len(texts) in sizes for texts in found), "one that is larger stays whole"
    if all(size <= 50 for size in sizes):
        assert all(len(one) > 50 for one in found[:-1]), "none is sent while the next would have had room"


def test_what_is_large_goes_alone(monkeypatch):
    monkeypatch.setattr(encode, "COALESCED_BYTES", 10_000)  # of a Spark task
    found = [batch.num_rows for batch in encode.coalesce_batches(numbered([10, 10, 10], width=700))]
    assert found == [10, 10, 10]


def test_things_are_done_one_after_the_other_while_the_caller_goes_on():
    done, may = [], threading.Event()

    def first():
        may.wait(60)
        done.append("first")

    with BackgroundWriter() as behind:
        behind.submit(first)
        assert not done
        may.set()
        behind.submit(lambda: done.append("second"))
    assert done == ["first", "second"]


@pytest.mark.parametrize("things_after", [0, 2])
def test_what_fails_is_raised_and_nothing_is_done_after_it(things_after):
    done = []

    def fail():
        raise ValueError("no")

    def caller():
        with BackgroundWriter() as behind:
            behind.submit(fail)
            for number in range(things_after):
                behind.submit(partial(done.append, number))

    with pytest.raises(ValueError, match="no"):
        caller()
    assert not done


def test_a_caller_that_fails_waits_for_what_is_under_way():
    done, may = [], threading.Event()

    def last():
        may.wait(0.05)
        done.append("last")

    def caller():
        with BackgroundWriter() as behind:
            behind.submit(last)
            raise KeyError

    with pytest.raises(KeyError):
        caller()
    assert done == ["last"]
