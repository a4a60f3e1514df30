"""Consumers that iterate: the short form of `make chaos CHAOS_ARGS='--store "sqlite prefetch"'`."""

from __future__ import annotations

import pytest

from tests.chaos.killer import live
from tests.chaos.kinds import PREFETCH
from tests.chaos.world import World

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_a_killed_consumer_fails_one_message_at_most(scheme, seed, tmp_path):
    world = World(scheme, scheme, seed, tmp_path, kind=PREFETCH)
    result = live(world, 12)
    print(result)
    assert not result.wrong
    assert result.kills["consumer"]
