"""Exactly once, end to end: the short form of `make chaos`."""

from __future__ import annotations

import os

import pytest

from tests import registered
from tests.chaos.failover import PAIRS
from tests.chaos.killer import STRIKES, live
from tests.chaos.kinds import CLUSTER, DATABASES, EXCHANGE, FIRST, FIRST_LEAST, INPUTS, KINDS, PROCESSORS
from tests.chaos.world import World
from tests.services import ServiceError

pytestmark = pytest.mark.timeout(900)

#: What is killed; the others change a checkpoint, or let a driver stand still, and take a start of Spark or two each.
KILLED = [one for one in KINDS[""].victims if one not in STRIKES]
CHANGED = [one for one in KINDS[""].victims if one in STRIKES]

#: Kinds of worlds in which nothing is killed but what reserves the first batch of a new checkpoint.
NEW_CHECKPOINTS = (FIRST, FIRST_LEAST, INPUTS)

EMBEDDED, SERVED = registered.schemes(server=False), registered.schemes(server=True)


@pytest.mark.parametrize(
    ("stores", "kind", "buckets", "kills", "victims"),
    [
        pytest.param(EMBEDDED[:1], "", 0, 6, KILLED, id="short"),
        *(pytest.param([one], "", 0, 12, KILLED, id=one, marks=pytest.mark.full) for one in EMBEDDED),
        pytest.param(SERVED, "", 0, 20, KILLED, id="-".join(SERVED), marks=pytest.mark.full),
        pytest.param([*EMBEDDED[:1], SERVED[-1]], EXCHANGE, 40, 12, KILLED, id="exchange", marks=pytest.mark.full),
        pytest.param([*EMBEDDED[:1], SERVED[0]], PROCESSORS, 0, 10, KILLED, id="join-fork", marks=pytest.mark.full),
        pytest.param(EMBEDDED[:1], "", 0, 4, CHANGED, id="checkpoints", marks=pytest.mark.full),
        *(pytest.param(EMBEDDED[:1], kind, 0, 2, None, id=kind, marks=pytest.mark.full) for kind in NEW_CHECKPOINTS),
        pytest.param([*EMBEDDED[:1], SERVED[-1]], DATABASES, 0, 4, None, id=DATABASES, marks=pytest.mark.full),
        *(pytest.param(["redis"], one, 0, 4, None, id=one, marks=pytest.mark.full) for one in PAIRS),
        pytest.param(EMBEDDED[:1], CLUSTER, 0, 5, None, id=CLUSTER, marks=pytest.mark.full),
    ],
)
def test_every_message_comes_out_exactly_once_whatever_is_killed(
    stores, kind, buckets, kills, victims, seed, tmp_path
):
    source, target = (stores[0], stores[-1]) if seed % 2 else (stores[-1], stores[0])
    try:
        world = World(source, target, seed, tmp_path, kind=kind, buckets=buckets)
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    result = live(world, kills, victims)
    print(result)
    assert not result.wrong
    assert result.kills.total() == kills
    if kind in NEW_CHECKPOINTS:
        assert result.checkpoints["killed before the first offset"], "no kill has hit the first reserve"
    else:
        assert result.in_flight or victims is CHANGED, "no kill has hit a batch in flight"
