"""Live in worlds with kills, and say whether every message came out exactly once: `make chaos`.

docs/reliability.md describes the worlds and what they show. Exit code 1: something was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests import registered
from tests.chaos import failover
from tests.chaos.killer import live
from tests.chaos.kinds import (
    CLUSTER,
    DATABASES,
    EXCHANGE,
    FIRST,
    FIRST_LEAST,
    FORKS,
    INPUTS,
    KINDS,
    PACK,
    PREFETCH,
    PROCESSORS,
    SPECIAL,
)
from tests.chaos.world import World

#: Each store alone, and each as the source of another one; a graph moves the messages in two of both kinds. The other
#: kinds are on each store.
WORLDS = [*registered.schemes(), *(f"{source}-{target}" for source, target in registered.pairs() if source != target)]
WORLDS += [f"{one} {mover}" for mover in (EXCHANGE, PROCESSORS) for one in (WORLDS[0], WORLDS[-2])]
WORLDS += [f"{one} {kind}" for kind in (FIRST, FIRST_LEAST, INPUTS) for one in registered.schemes()]
WORLDS += [f"{source}-{target} {DATABASES}" for source, target in registered.pairs()]
WORLDS += [f"{one} {kind}" for kind in (CLUSTER, FORKS, PREFETCH) for one in registered.schemes()]
WORLDS += [f"redis {kind}" for kind in failover.PAIRS]

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def interrupted(*_):
    """End, but not before all processes of the world have ended."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def say(text):
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--kills", type=int, help=f"in each world (default 300; 100 with {', '.join(SPECIAL)})")
    parser.add_argument(
        "--store", action="append", metavar="WORLD",
        help=f"a store, or source-target, and perhaps the kind of world ({', '.join(filter(None, KINDS))}); may be "
        f"repeated (default: {', '.join(WORLDS)})",
    )  # fmt: skip
    parser.add_argument(
        "--victim", action="append", choices=list(PACK), help="kill only this (repeatable; default: all of the world)"
    )
    parser.add_argument("--buckets", type=int, default=0, metavar="N", help="keep messages in buckets of N")
    parser.add_argument("--seed", type=int, help="repeats a plan (default: SPARK_QUEUE_CHAOS_SEED, or any)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each world")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only show such lines as a table")
    weaker = parser.add_argument_group("to see it fail")
    weaker.add_argument("--sink", action="append", default=[], metavar="NAME=VALUE", help="an option of the sink")
    weaker.add_argument("--aof", default="always", choices=["always", "everysec", "no", "none"], help="of Redis")
    weaker.add_argument("--mongodb", default="", metavar="NAME=VALUE&…", help="options in the URL of MongoDB")
    arguments = parser.parse_args()
    if arguments.table:
        say(table(arguments.table.read_text().splitlines()))
        return 0
    seed = arguments.seed
    if seed is None:
        seed = int(os.environ.get("SPARK_QUEUE_CHAOS_SEED") or random.randrange(10**6))
    sink = dict(one.split("=", 1) for one in arguments.sink)
    for stores in arguments.store or WORLDS:
        kind = stores.partition(" ")[2]
        if kind not in KINDS:
            parser.error(f"--store {stores!r}: after the stores there may be {', '.join(filter(None, KINDS))}")
        if sink and KINDS[kind].graph:
            parser.error(f"--store {stores!r}: no --sink, which is that of a query")
        pair = stores.partition(" ")[0].split("-")
        if unknown := set(pair) - set(registered.schemes()):
            parser.error(
                f"--store {stores!r}: no store {', '.join(unknown)}; known are {', '.join(registered.schemes())}"
            )
        if arguments.victim == ["server"] and all(map(registered.embedded, pair)):
            parser.error(f"--victim server: {stores!r} has no server")
        if KINDS[kind].pair and set(pair) != {"redis"}:
            parser.error(f"--store {stores!r}: only redis fails over")
        if ("failover" in (arguments.victim or ())) != bool(KINDS[kind].pair) and arguments.victim:
            parser.error(f"--victim failover belongs to a world of {' or '.join(failover.PAIRS)}; see --store")
        if {"executor", "node"}.intersection(arguments.victim or ()) and not KINDS[kind].cluster:
            parser.error(f"--victim executor and node: {stores!r} has no cluster; see --store")
    results = []
    for stores in arguments.store or WORLDS:
        pair, _, kind = stores.partition(" ")
        source, _, target = pair.partition("-")
        folder = Path(tempfile.mkdtemp(prefix="spark_queue-chaos-"))
        say(f"world {stores}, SPARK_QUEUE_CHAOS_SEED={seed}, {folder}")
        servers = {"aof": arguments.aof, "options": arguments.mongodb}
        how = {"kind": kind, "buckets": arguments.buckets, "sink": sink, **servers}
        world = World(source, target or source, seed, folder, say=say, **how)
        result = live(world, arguments.kills or KINDS[kind].kills, arguments.victim)
        results.append(result)
        say(str(result))
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(result.as_json() + "\n")
        if result.wrong:
            say(f"  the logs are in {folder}")
        else:
            shutil.rmtree(folder)
    for result in results:
        say(f"{result.stores}: {'WRONG' if result.wrong else 'right'}, {result.kills.total()} kills, seed {seed}")
    return int(any(result.wrong for result in results))


def table(lines):
    """Results, of the same stores together, as Markdown; then what came of checkpoints."""
    results = [json.loads(line) for line in lines]
    worlds = {}
    for one in results:
        worlds.setdefault(one["stores"], []).append(one)
    head = ["stores", "seeds", "kills", *PACK, "in flight", "batches", "came again", "known to the ledger"]
    head += ["messages", "maybe", "dead letters", "minutes", "found wrong"]
    rows = [head, ["---"] * len(head)]
    for stores, runs in worlds.items():

        def total(value, runs=runs):
            return sum(value(run) for run in runs)

        kills = {victim: total(lambda run, victim=victim: run["kills"].get(victim, 0)) for victim in PACK}
        counts = ["in_flight", "batches", "replayed", "skipped", "acknowledged", "maybe", "dead"]
        rows.append([
            stores, " ".join(str(run["seed"]) for run in runs), sum(kills.values()), *kills.values(),
            *(total(lambda run, name=name: run[name]) for name in counts),
            f"{total(lambda run: run['seconds']) / 60:.0f}", total(lambda run: len(run["wrong"])),
        ])  # fmt: skip
    came = Counter()
    for one in results:
        came.update(one["checkpoints"])
    verdicts = [["checkpoints", "times"], ["---"] * 2, *sorted(came.items())]
    return f"{_as_markdown(rows)}\n\n{_as_markdown(verdicts)}"


def _as_markdown(rows):
    return "\n".join(
        f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in row)} |" for row in rows
    )


if __name__ == "__main__":
    for number in INTERRUPTS:
        signal.signal(number, interrupted)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
