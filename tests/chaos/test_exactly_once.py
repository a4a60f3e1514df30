"""Exactly once, end to end: the short form of `make chaos`."""

from __future__ import annotations

import os

import pytest

from tests.chaos.killer import live
from tests.chaos.world import EXCHANGE, PROCESSORS, World
from tests.services import ServiceError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("stores", "mover", "buckets", "kills"),
    [
        (("sqlite",), "", 0, 12),
        (("mongodb", "redis"), "", 0, 20),
        (("sqlite", "redis"), EXCHANGE, 40, 12),
        (("sqlite", "mongodb"), PROCESSORS, 0, 10),
    ],
    ids=["sqlite", "mongodb-redis", "exchange-buckets", "join-fork"],
)
def test_every_message_comes_out_exactly_once_whatever_is_killed(stores, mover, buckets, kills, seed, tmp_path):
    source, target = (stores[0], stores[-1]) if seed % 2 else (stores[-1], stores[0])
    try:
        world = World(source, target, seed, tmp_path, mover=mover, buckets=buckets)
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    result = live(world, kills)
    print(result)
    assert not result.wrong
    assert result.kills.total() == kills
    assert result.in_flight, "no kill has hit a batch in flight"
