"""Exactly once, end to end: the short form of `make chaos`."""

from __future__ import annotations

import os

import pytest

from tests import registered
from tests.chaos.checkpoints import STRIKES
from tests.chaos.killer import PACK, live
from tests.chaos.world import EXCHANGE, PROCESSORS, World
from tests.services import ServiceError

pytestmark = pytest.mark.timeout(900)

#: What is killed; the others change a checkpoint, or let a driver stand still, and take a start of Spark or two each.
KILLED = [one for one in PACK if one not in STRIKES]

EMBEDDED, SERVED = registered.schemes(server=False), registered.schemes(server=True)


@pytest.mark.parametrize(
    ("stores", "mover", "buckets", "kills", "victims"),
    [
        pytest.param(EMBEDDED[:1], "", 0, 6, KILLED, id="short"),
        *(pytest.param([one], "", 0, 12, KILLED, id=one, marks=pytest.mark.full) for one in EMBEDDED),
        pytest.param(SERVED, "", 0, 20, KILLED, id="-".join(SERVED), marks=pytest.mark.full),
        pytest.param([*EMBEDDED[:1], SERVED[-1]], EXCHANGE, 40, 12, KILLED, id="exchange", marks=pytest.mark.full),
        pytest.param([*EMBEDDED[:1], SERVED[0]], PROCESSORS, 0, 10, KILLED, id="join-fork", marks=pytest.mark.full),
        pytest.param(EMBEDDED[:1], "", 0, 4, STRIKES, id="checkpoints", marks=pytest.mark.full),
    ],
)
def test_every_message_comes_out_exactly_once_whatever_is_killed(
    stores, mover, buckets, kills, victims, seed, tmp_path
):
    source, target = (stores[0], stores[-1]) if seed % 2 else (stores[-1], stores[0])
    try:
        world = World(source, target, seed, tmp_path, mover=mover, buckets=buckets)
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    result = live(world, kills, victims)
    print(result)
    assert not result.wrong
    assert result.kills.total() == kills
    assert result.in_flight or victims is STRIKES, "no kill has hit a batch in flight"
