"""A database that is away for a while: its server is killed, or another process has locked its file."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager

from tests.chaos.processes import read_log

#: Seconds after which a database comes back though no batch has failed. A query waits 10 s for a locked file.
LONGEST = 40.0


@contextmanager
def away(world, url):
    """Let no client write to the database at `url` within the block."""
    servers = [one for one in world.servers if one.url == url]
    if servers:
        servers[0].kill()
        try:
            yield
        finally:
            servers[0].start()
    else:
        with closing(sqlite3.connect(url.partition("://")[2], timeout=60, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            yield
            file.execute("ROLLBACK")


def take_away(world, which, late):
    """Take a database of the sink away until a batch has failed: that whose ledger is behind, if one is.

    Return whether a batch has failed.
    """
    ledgers = world.ledgers()
    behind = [store for store, batch in zip(world.outputs, ledgers, strict=True) if batch < max(ledgers)]
    some = behind or world.outputs
    tries, end = _tries(world), time.monotonic() + LONGEST
    with away(world, some[int(which * len(some))].url):
        world.until(lambda: _tries(world) > tries or time.monotonic() > end, "a batch that fails")
    world.say(f"away: {'one of two ledgers had' if behind else 'both ledgers had, or none,'} batch {max(ledgers)}")
    return _tries(world) > tries


def _tries(world):
    """How often the query was started, and whether its driver lives."""
    return sum(one["did"] == "try" for one in read_log(world.folder / f"{world.driver.life}.log")) + (
        0 if world.driver.running else 1_000_000
    )


#: How a database is struck.
STRIKES = {"away": take_away}
