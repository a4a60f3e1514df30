"""Which steps start after Spark's process has died: suspects first, one at a time."""

from __future__ import annotations

import pytest

from spark_queue.runner.probation import (
    ALL_ALONE_SECONDS,
    ALONE_SECONDS,
    MOST_ALONE_SECONDS,
    Probation,
)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def probation(clock):
    return Probation(clock)


def test_without_suspects_all_start_at_once(probation):
    assert probation.choose({"a": None, "b": None}) == ["a", "b"]
    assert not probation.is_busy and not probation.others_wait


def test_suspects_start_alone_one_after_the_other_and_then_all_others(probation):
    waiting = {"good": None, "one": 0, "two": 0}
    assert probation.choose(waiting) == ["one"]
    assert probation.choose({"good": None, "two": 0}) == [], "it is alone"
    assert probation.is_tried("one") and not probation.is_tried("two")
    probation.leave("one")
    assert probation.choose({"good": None, "two": 0}) == ["two"]
    probation.leave("two")
    assert probation.choose({"good": None}) == ["good"]


def test_the_one_that_died_on_probation_is_tried_first(probation):
    assert probation.choose({"one": 0, "two": 1, "three": 1}) == ["two"]


def test_one_that_takes_long_keeps_the_others_waiting_for_a_limited_time_only(probation, clock):
    assert probation.choose({"good": None, "slow": 0, "next": 0}) == ["slow"]
    assert not probation.let_next("slow", 0.0), "it is starting"
    clock.now += ALONE_SECONDS
    assert probation.let_next("slow", ALONE_SECONDS)
    assert probation.choose({"good": None, "next": 0}) == ["next"]
    clock.now += ALL_ALONE_SECONDS
    assert probation.choose({"good": None, "last": 0}) == ["good"], "the others have waited long enough"
    assert probation.choose({"last": 0, "more": None}) == ["more"]
    assert probation.let_next("next", ALONE_SECONDS)
    assert probation.choose({"last": 0}) == ["last"], "beside the others"


def test_a_suspect_that_never_starts_does_not_block_others_forever(probation, clock):
    probation.choose({"stuck": 0, "next": 0})
    clock.now += 3 * ALONE_SECONDS
    assert probation.let_next("stuck", 0.0)
    assert "next" in probation.choose({"next": 0})


def test_the_others_wait_for_a_suspect_that_cannot_start_yet(probation, clock):
    assert probation.choose({"good": None, "one": 0}) == ["one"]
    probation.leave("one")
    probation.keep("one", 0)
    assert probation.choose({"good": None}) == [], "it is kept, and looked at again later"
    assert probation.choose({"good": None, "one": 0}) == ["one"]
    probation.leave("one")
    probation.keep("one", 0)
    assert probation.choose({"good": None, "two": 0}) == ["two"], "another suspect need not wait for it"
    clock.now += ALL_ALONE_SECONDS
    assert probation.choose({"good": None}) == ["good"]


def test_suspects_of_another_server_start_beside_the_others_one_at_a_time(probation):
    probation.choose({"good": None})
    assert probation.choose({"one": 0, "two": 0, "new": None}) == ["new", "one"]
    assert probation.choose({"two": 0, "newer": None}) == ["newer"]
    probation.leave("one")
    assert probation.choose({"two": 0}) == ["two"]


def test_the_one_on_probation_is_to_blame(probation):
    probation.choose({"one": 0, "two": 0})
    assert probation.blame() == "one" and probation.others_wait, "and nothing else ran"
    probation.restart()
    assert probation.choose({"one": 1, "two": None}) == ["one"]
    assert probation.blame() == "one"


def test_no_step_is_blamed_if_none_or_several_were_on_probation_and_they_are_alone_for_longer(probation, clock):
    probation.choose({"good": None})
    assert probation.blame() is None
    probation.restart()
    probation.choose({"slow": 0, "next": 0})
    assert not probation.let_next("slow", ALONE_SECONDS), "twice as long"
    assert probation.let_next("slow", 2 * ALONE_SECONDS)
    probation.choose({"next": 0})
    assert probation.blame() is None, "either of them may be the reason"
    for _ in range(5):
        assert probation.blame() is None
    probation.restart()
    probation.choose({"slow": 0})
    assert probation.let_next("slow", MOST_ALONE_SECONDS), "there is a limit"
    assert probation.blame() == "slow", "it has not done a batch yet"


def test_one_that_has_done_a_batch_is_not_to_blame(probation):
    probation.choose({"one": 0})
    probation.leave("one")
    assert probation.blame() is None


def test_those_that_are_kept_wait_until_they_are_chosen_or_left(probation):
    probation.keep("one", 1)
    probation.keep("two", 0)
    assert probation.kept == {"one": 1, "two": 0}
    probation.choose({"one": 1, "two": 0})
    assert probation.kept == {"two": 0}
    probation.leave("two")
    assert probation.kept == {}
