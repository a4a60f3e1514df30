"""Requests start in turns, so that a caller who sends thousands at once does not delay others."""

from __future__ import annotations

import asyncio

import pytest

from spark_queue.rest.entrance import KNOWN, STARTED_TOGETHER, Entrance
from spark_queue.rest.turns import Turns

#: Requests of the crowd.
MANY = 500


def scope(name, address="10.0.0.1", credential="", known=False):
    return {
        "type": "http", "path": name, "client": (address, 1), KNOWN: known,
        "headers": [(b"authorization", credential.encode())] if credential else [],
    }  # fmt: skip


def order(crowd, other):
    """Send a crowd of requests and then another one. Return the number of those that started before it."""
    started = []

    async def app(scope, receive, send):
        started.append(scope["path"])
        await asyncio.sleep(0)

    async def act():
        entrance = Entrance(app)
        calls = [entrance(one, None, None) for one in [*crowd, other]]
        await asyncio.gather(*calls)

    asyncio.run(act())
    assert len(started) == len(crowd) + 1, "all start"
    return started.index(other["path"])


@pytest.mark.parametrize(
    "other",
    [
        {"address": "10.0.0.2", "credential": "crowd"},
        {"credential": "other"},
        {"credential": "crowd", "known": True},
        {"address": "2001:db8::1"},
    ],
    ids=["another address", "another credential", "a known connection", "an address of IPv6"],
)
def test_another_caller_starts_before_a_crowd(other):
    crowd = [scope("crowd", credential="crowd") for _ in range(MANY)]
    assert order(crowd, scope("other", **other)) <= STARTED_TOGETHER + 1


def test_made_up_credentials_and_addresses_of_one_network_are_one_caller():
    crowd = [scope("crowd", credential=f"made up {n}") for n in range(MANY)]
    assert order(crowd, scope("other", address="10.0.0.2")) <= STARTED_TOGETHER + 1
    assert order(crowd, scope("other", known=True)) <= STARTED_TOGETHER + 1
    crowd = [scope("crowd", address=f"2001:db8::{n:x}") for n in range(MANY)]
    assert order(crowd, scope("other", address="2001:db9::1")) <= STARTED_TOGETHER + 1


def test_the_loop_does_other_things_between_the_rounds():
    rounds = 0

    async def app(scope, receive, send):
        pass

    async def act():
        nonlocal rounds
        entrance = Entrance(app)
        calls = asyncio.gather(*(entrance(scope("any"), None, None) for _ in range(MANY)))
        while not calls.done():
            await asyncio.sleep(0)
            rounds += 1

    asyncio.run(act())
    assert rounds >= MANY / STARTED_TOGETHER


def test_a_request_that_is_cancelled_takes_no_turn():
    async def act():
        turns = Turns()
        gone, first, second = turns.add("a", 1), turns.add("a", 1), turns.add("b", 1)
        gone.cancel()
        assert turns.give() == "a" and first.done(), "not the one that has gone"
        turns.remove("a", 1, gone)
        turns.remove("a", 1, gone)
        assert turns.give() == "b" and second.done()
        assert turns.give() is None and not turns

    asyncio.run(act())


def test_a_cancelled_request_does_not_start():
    started = []

    async def app(scope, receive, send):
        started.append(scope["path"])

    async def act():
        entrance = Entrance(app)
        calls = [asyncio.ensure_future(entrance(scope(str(n)), None, None)) for n in range(3 * STARTED_TOGETHER)]
        await asyncio.sleep(0)
        calls[-1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert calls[-1].cancelled()

    asyncio.run(act())
    assert started == [str(n) for n in range(3 * STARTED_TOGETHER - 1)]
