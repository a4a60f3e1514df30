"""The rules of exactly-once keep what is promised, in every state of a world; without one of them it breaks."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.rules import Rules
from tests.protocol.search import follow, one_batch, search, steps_to, trace_of
from tests.protocol.state import REFUSED, breach
from tests.protocol.worlds import AFTER_ONE_BATCH, DAMAGED, LARGE, LEGITIMATE, WENT_BACK, WITHOUT, without

ALL = Rules()


SMALL = LEGITIMATE | DAMAGED | WENT_BACK


@pytest.mark.parametrize("world", [pytest.param(world, id=name) for name, world in SMALL.items()])
def test_the_rules_hold(world):
    found = search(world, ALL)
    assert not found.fault, str(found)
    assert found.states > 200, "hardly anything happens in this world"


@pytest.mark.full
@pytest.mark.parametrize("world", [pytest.param(world, id=name) for name, world in LARGE.items()])
def test_the_rules_hold_in_a_large_world(world):
    found = search(world, ALL)
    assert not found.fault, str(found)


@pytest.mark.full
@pytest.mark.parametrize("world", [pytest.param(world, id=name) for name, world in AFTER_ONE_BATCH.items()])
def test_the_rules_hold_after_one_batch(world):
    found = search(world, ALL, one_batch(world, ALL))
    assert not found.fault, str(found)


def test_each_rule_is_left_out_once():
    assert set(WITHOUT) == {one.name for one in fields(Rules)}


@pytest.mark.parametrize("rule", WITHOUT)
def test_it_goes_wrong_without_a_rule(rule):
    """By the shortest trace, as it is stored."""
    world, fault = WITHOUT[rule]
    stored, steps = trace_of(rule)
    assert stored == fault
    end = follow(world, without(rule), steps)
    if fault in ("LOST", "DOUBLED", "UNPAIRED", "TRIED"):
        assert breach(end, world) == fault
    elif fault == "FALSE ALARM":
        assert REFUSED in steps[-1]
    else:
        assert search(world, without(rule), steps).trace == steps, "it can go on"
    try:
        end = follow(world, ALL, steps)
    except LookupError:
        return  # the rule forbids a step of it
    assert not breach(end, world)
    assert fault != "STUCK" or not search(world, ALL, steps).fault


@pytest.mark.full
@pytest.mark.parametrize("rule", WITHOUT)
def test_a_search_finds_that(rule):
    world, fault = WITHOUT[rule]
    found = search(world, without(rule), steps_to(rule))
    assert (found.fault, found.trace) == (fault, trace_of(rule)[1]), "python -m tests.protocol.search writes it anew"
