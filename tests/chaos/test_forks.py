"""Producers and consumers that fork: the short form of `make chaos CHAOS_ARGS='--store "sqlite forks"'`."""

from __future__ import annotations

import pytest

from tests.chaos.killer import live
from tests.chaos.kinds import FORKS
from tests.chaos.world import World

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_workers_that_are_forked_and_killed_lose_and_double_nothing(scheme, seed, tmp_path):
    world = World(scheme, scheme, seed, tmp_path, kind=FORKS)
    result = live(world, 12, ["fork", "producer", "consumer"])
    print(result)
    assert not result.wrong
    assert result.kills["fork"]
