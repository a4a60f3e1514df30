"""Queries that start a few at a time. Without Spark."""

from __future__ import annotations

import threading

import pytest

from spark_queue.spark.start_turns import StartTurns


@pytest.mark.parametrize("at_once", [1, 2])
def test_turns_come_in_order_and_a_few_at_a_time(at_once):
    turns = StartTurns(at_once)
    asked = [turns.ask() for _ in range(5)]
    for number in range(5):
        assert [one.is_set() for one in asked] == [place < number + at_once for place in range(5)]
        turns.end()
    assert turns.ask().is_set()


def test_no_more_than_allowed_at_once_from_threads():
    turns, now, most, lock = StartTurns(2), [0], [0], threading.Lock()

    def work():
        turns.ask().wait()
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.002)
        with lock:
            now[0] -= 1
        turns.end()

    threads = [threading.Thread(target=work) for _ in range(40)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(10)
    assert (now, most) == ([0], [2])
