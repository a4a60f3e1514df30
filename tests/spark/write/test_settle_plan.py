"""Writes with `operation=settle` that a layout cannot do are refused when they are planned."""

from __future__ import annotations

import pytest

from spark_queue import MessageError, OptionError, Queue
from spark_queue.stores import store_class
from tests import registered
from tests.spark.begun import begin_batch
from tests.spark.drive import found
from tests.spark.write.test_settle import outcomes, settle, settling, sizes

LAYOUTS = [
    pytest.param(kind, marks=() if registered.is_default(kind) else pytest.mark.full) for kind in registered.kinds()
]


@pytest.fixture(params=LAYOUTS)
def layout_url(request, url_of):
    scheme, _, layout = request.param.partition(" ")
    return registered.in_layout(url_of(scheme), layout)


@pytest.fixture
def held(layout_url, name):
    """The ids of four messages that the consumer `etl` works on."""
    with Queue(layout_url, name) as queue:
        ids = queue.push_many([{"n": str(n)} for n in range(4)])
    begin_batch(layout_url, name)
    return ids


def test_a_move_is_refused_when_it_is_planned_by_a_layout_that_cannot_move(layout_url, name, held):
    moves = outcomes(held, "move", to=f"{name}.other")
    if store_class(layout_url).supports_forward:
        settle(moves, layout_url, name)
        assert sizes(layout_url, f"{name}.other").ready == 4
        return
    with pytest.raises(OptionError, match=r"cannot change and move a message in one step, .* column 'to'") as caught:
        settling(moves, layout_url, name)
    assert store_class(layout_url).layout_name in str(caught.value)
    assert sizes(layout_url, name).reserved == 4, "nothing was settled"


@pytest.mark.parametrize("outcome", ["commit", "rollback", "dead"])
def test_each_other_outcome_works_in_each_layout(layout_url, name, held, outcome):
    columns = {"commit": {}, "rollback": {"delay": 3_600}, "dead": {"reason": "no"}}[outcome]
    settle(outcomes(held, outcome, **columns), layout_url, name, history="1h", maxTries="3")
    left = sizes(layout_url, name)
    assert left.reserved == 0 and left.scheduled == (4 if outcome == "rollback" else 0)
    assert left.dead == (4 if outcome == "dead" else 0)


def test_an_invalid_target_is_a_bad_row(url_of, name):
    url = registered.in_layout(url_of("mongodb"), "pl-mongo")
    with Queue(url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(4)])
    begin_batch(url, name)
    moves = outcomes(ids, "move", to=[name, f"{name}.other", "x" * 201, f"{name}.other"], tries=[0, 0, 0, 2**31])
    with pytest.raises(MessageError, match="its 'to' is the queue that it comes from"):
        settle(moves, url, name)
    assert sizes(url, name).reserved == 4
    settle(moves, url, name, onBadRow="deadLetter")
    assert [one.id for one in found(url, f"{name}.other")] == [ids[1]]
    reasons = {one.id: one.headers["x-error"] for one in found(url, f"{name}.dead")}
    assert sorted(reasons) == sorted([ids[0], ids[2], ids[3]])
    assert reasons[ids[2]].startswith("its 'to' is no queue") and reasons[ids[3]] == "its tries is beyond 2147483647"
