"""What many callers ask at the same moment, done in one step."""

from __future__ import annotations

import asyncio

import pytest

from spark_queue.rest.coalesce import Coalescer


class Steps:
    """Does what is asked when it is let, and keeps what was done in each step."""

    def __init__(self, most=100):
        self.done, self.let = [], asyncio.Semaphore(0)
        self.together = Coalescer(self.act, most)

    async def act(self, key, asked):
        self.done.append((key, asked))
        await self.let.acquire()
        if "all" in asked:
            raise ConnectionError("nothing is there")
        return [ValueError(one) if one == "bad" else one.upper() for one in asked]

    def ask(self, *asked, key="q"):
        return [asyncio.ensure_future(self.together.submit(key, one)) for one in asked]

    async def come(self, *let):
        await self.turns()
        for _ in let:
            self.let.release()
        await self.turns()

    async def turns(self):
        """Let the loop turn until whatever can go on has gone on: each step takes a few turns."""
        for _ in range(100):
            await asyncio.sleep(0)


def run_async(test):
    return asyncio.run(test())


def test_the_first_goes_at_once_and_what_comes_meanwhile_goes_together():
    async def main():
        steps = Steps()
        first = steps.ask("a")
        await steps.come()
        rest = steps.ask("b", "c") + steps.ask("d", key="other")
        await steps.come()
        assert steps.done == [("q", ["a"]), ("other", ["d"])]
        await steps.come(1, 2)
        assert steps.done[2:] == [("q", ["b", "c"])]
        await steps.come(3)
        assert await asyncio.gather(*first, *rest) == ["A", "B", "C", "D"]
        again = steps.ask("e")
        await steps.come(4)
        assert (await again[0], steps.done[3:]) == ("E", [("q", ["e"])])

    run_async(main)


def test_a_step_has_a_limited_number_of_calls():
    async def main():
        steps = Steps(2)
        asked = steps.ask("a")
        await steps.come()
        asked += steps.ask("b", "c", "d")
        await steps.come(1, 2, 3)
        assert [one for _, one in steps.done] == [["a"], ["b", "c"], ["d"]]
        assert await asyncio.gather(*asked) == ["A", "B", "C", "D"]

    run_async(main)


def test_each_has_its_own_error_and_all_that_of_their_step():
    async def main():
        steps = Steps()
        steps.ask("a")
        await steps.come()
        good, bad, other = steps.ask("b", "bad", "c")
        await steps.come(1, 2)
        assert (await good, await other) == ("B", "C")
        with pytest.raises(ValueError, match="bad"):
            await bad
        lost = steps.ask("all")
        await steps.come(3)
        with pytest.raises(ConnectionError):
            await lost[0]

    run_async(main)


def test_a_caller_that_has_gone_keeps_no_other_waiting():
    async def main():
        steps = Steps()
        steps.ask("a")
        await steps.come()
        gone, here = steps.ask("b", "c")
        await steps.come()
        gone.cancel()
        await steps.come(1, 2)
        assert await here == "C"

    run_async(main)
