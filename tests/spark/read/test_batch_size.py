"""The rule of `maxRecordsPerTrigger=auto`, tried on simulated batches: no Spark, no database."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import pytest

from spark_queue.spark.read.batch_size import FIRST_ROWS, MAX_ROWS, MIN_ROWS, BatchSize

TARGET = 2.0

#: Fixed seconds of a batch and seconds per row, as measured: what is drained into a sink that does
#: nothing, an exchange, users' code that is slow, eight queries on 2 cores, and a checkpoint on S3.
SQLITE, REDIS, MONGODB = (0.45, 3.6e-6), (0.45, 7e-6), (0.5, 5e-5)
EXCHANGE, SLOW, VERY_SLOW = (0.8, 6e-5), (0.5, 1e-3), (0.5, 1e-2)
CROWDED, CROWDED_AND_SLOW, S3 = (2.5, 2e-5), (3.0, 1e-4), (3.0, 5e-6)


@dataclass
class World:
    """A machine that runs batches: the time of each varies by a factor, and some are much longer."""

    fixed: float
    per_row: float
    noise: float = 0.1
    outliers: float = 0.02
    cold: float = 2.2
    seed: int = 0

    def __post_init__(self):
        self.random = random.Random(self.seed)

    def seconds(self, rows: int) -> float:
        taken = (self.fixed + self.per_row * rows) * math.exp(self.random.gauss(0, self.noise))
        return taken * (self.random.uniform(2, 5) if self.random.random() < self.outliers else 1)

    def run(self, batches: int = 60, total: int = 10**12) -> list[tuple[int, float]]:
        """Return the rows and the seconds of the batches of one process."""
        self.size, done = BatchSize(TARGET), []
        for number in range(batches):
            rows = min(self.size.rows, total)
            seconds = self.seconds(rows) + (self.cold if number == 0 else 0)
            if number:
                self.size.learn(rows, seconds, TARGET)
            else:
                self.size.learn_first(rows, seconds)
            done.append((rows, seconds))
            total -= rows
            if not total:
                break
        return done

    def run_pipelined(self, reserve: float, commit: float, total: int) -> list[tuple[int, float]]:
        """Return rows and seconds of the batches if each next one is reserved while one is worked on.

        `reserve`, `commit`: seconds per row. A reserve ahead slows the tasks, and a batch waits for it.
        """
        size, done = BatchSize(TARGET), []
        ahead, ready_in = 0, 0.0
        while total or ahead:
            rows, begun = ahead or min(size.rows, total), 0.0 if ahead else reserve * size.rows
            total -= 0 if ahead else rows
            waited = max(0.0, ready_in) if ahead else 0.0
            guess = size.following if len(done) > 1 else min(size.following, round(TARGET / reserve))
            ahead = min(guess, total)
            total -= ahead
            worked = self.seconds(rows) + (0 if done else self.cold)
            ready_in = 1.3 * reserve * ahead - worked
            seconds = begun + worked + commit * rows
            if done:
                size.learn(rows, seconds, TARGET)
            else:
                size.max_rows = round(TARGET / reserve)
                size.learn_first(rows, seconds)
                size.max_rows = MAX_ROWS
            done.append((rows, waited + seconds))
        return done

    @property
    def ideal(self) -> float:
        """The rows per second of batches as the rule wants them."""
        rows = min(MAX_ROWS, max(TARGET - self.fixed, self.fixed) / self.per_row)
        return rows / (self.fixed + self.per_row * rows)


def rate(batches):
    return sum(rows for rows, _ in batches) / sum(seconds for _, seconds in batches)


ALL = [SQLITE, REDIS, MONGODB, EXCHANGE, SLOW, VERY_SLOW, CROWDED, CROWDED_AND_SLOW, S3]


@pytest.mark.parametrize(("fixed", "per_row"), ALL)
def test_batches_settle_near_the_target_and_fixed_cost_never_dominates(fixed, per_row):
    runs = [World(fixed, per_row, seed=seed).run()[20:] for seed in range(20)]
    worlds = World(fixed, per_row)
    assert median(rate(run) for run in runs) > 0.85 * worlds.ideal
    assert min(rate(run) for run in runs) > 0.6 * worlds.ideal
    aim = max(TARGET, 2 * fixed)
    assert 0.5 * aim < median(seconds for run in runs for _, seconds in run) < 1.25 * aim


@pytest.mark.parametrize(("fixed", "per_row"), ALL)
def test_on_a_restless_machine_there_is_no_spiral_to_small_batches(fixed, per_row):
    """A rule that only shrinks what is slow ends at MIN_ROWS, where fixed cost is all there is."""
    runs = [World(fixed, per_row, noise=0.4, outliers=0.08, seed=seed).run()[20:] for seed in range(25)]
    ideal = World(fixed, per_row).ideal
    rates = sorted(rate(run) for run in runs)
    assert median(rates) > 0.55 * ideal and rates[2] > 0.3 * ideal


@pytest.mark.parametrize(("fixed", "per_row", "total"), [(*SQLITE, 500_000), (*REDIS, 500_000), (*MONGODB, 100_000)])
def test_a_drain_of_a_backlog_is_nearly_as_fast_as_with_the_best_fixed_size(fixed, per_row, total):
    def fixed_size(rows):
        sizes = [min(rows, total - begin) for begin in range(0, total, rows)]
        return total / (2.2 + sum(fixed + per_row * one for one in sizes))

    best = max(map(fixed_size, (10_000, 30_000, 50_000, 100_000, 250_000)))
    runs = [World(fixed, per_row, outliers=0, seed=seed).run(total=total) for seed in range(20)]
    assert median(map(rate, runs)) > 0.8 * best


@pytest.mark.parametrize("cold", [4.0, 1.2])
def test_batches_that_are_reserved_ahead_of_a_slow_database_stay_near_the_target(cold):
    """As measured on MongoDB: to reserve takes as long as the tasks do, so a batch may wait for it."""
    for seed in range(40):
        batches = World(0.4, 4.5e-5, 0.08, 0, cold, seed).run_pipelined(4.2e-5, 2.5e-5, 600_000)
        assert max(seconds for _, seconds in batches[1:]) < 3 * TARGET, seed


@pytest.mark.parametrize("per_row", [1e-3, 1e-2])
def test_with_slow_code_the_fifth_batch_is_within_a_factor_of_two_of_the_target(per_row):
    for seed in range(20):
        batches = World(0.5, per_row, outliers=0, seed=seed).run(batches=8)
        assert all(TARGET / 2 < seconds < TARGET * 2 for _, seconds in batches[4:])
        assert batches[1][0] < FIRST_ROWS, "the first batch was too slow for growth"


def test_it_follows_code_that_gets_slower_and_quicker():
    world = World(0.4, 1e-5, outliers=0)
    world.run(batches=12)
    assert world.size.rows > 80_000

    def settled(batches):
        seen = []
        for _ in range(batches):
            rows = world.size.rows
            seen.append(world.seconds(rows))
            world.size.learn(rows, seen[-1], TARGET)
        return seen[-1]

    world.per_row = 2e-4
    assert settled(4) < 2 * TARGET
    world.per_row = 1e-5
    assert settled(4) > TARGET / 2


def test_the_first_batch_only_lets_the_next_one_grow_and_an_empty_queue_teaches_nothing():
    size = BatchSize(TARGET)
    size.learn_first(FIRST_ROWS, 2.5)
    assert size.rows > 8 * FIRST_ROWS
    for _ in range(20):  # a trickle
        size.learn(3, 0.3, TARGET)
    assert size.rows > 8 * FIRST_ROWS
    cold = BatchSize(TARGET)
    cold.learn_first(500, 0.4)
    assert cold.rows == FIRST_ROWS
    cold.learn_first(FIRST_ROWS, 34)  # many processes started at once: slow, but not the rows
    assert MIN_ROWS < cold.rows < FIRST_ROWS


def test_sizes_stay_within_their_limits():
    quick = World(0.1, 1e-9).run()
    assert max(rows for rows, _ in quick) == MAX_ROWS
    slow = World(0.1, 60.0, cold=0).run(batches=10)
    assert min(rows for rows, _ in slow) == MIN_ROWS


def test_every_other_batch_is_twice_as_large_or_the_parts_of_the_time_stay_unknown():
    sizes = [rows for rows, _ in World(0.5, 5e-5, noise=0, outliers=0).run(batches=30)[20:]]
    assert all(1.8 < max(one, other) / min(one, other) < 2.2 for one, other in pairwise(sizes))


def test_what_memory_limits_is_full_and_teaches_too():
    size = BatchSize(TARGET)
    size.max_rows = 600
    size.learn_first(600, 3.0)
    for _ in range(6):
        rows = min(size.rows, 600)
        size.learn(rows, 0.5 + rows * 0.02, TARGET)
    assert size.rows < 200, "10 s of work for what fits into memory is too much"
