"""What happens to checkpoints, new ones too, and to drivers that stand still; how an operator recovers.

A copy of a checkpoint that is restored, or one that has lost its newest files, either goes on or is refused. Then
the operator does what the error says: `spark-queue recover`, and a new checkpoint. Nothing else may happen.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

from tests.chaos.processes import ROOT, descendants, kill_tree, send
from tests.chaos.spark_processes import spark_processes

#: What the error of a refused checkpoint says to do.
REMEDY = re.compile(r"spark-queue recover URL (\S+) (\S+) --sink URL")

#: How many batches older a copy is than the checkpoint that it replaces, at most; how many files get lost.
OLDER, LOST = 3, 2

#: What is killed while it reserves its first batch, and how many seconds after a first message is reserved, at most.
FIRST, FIRST_DELAY = ("reader", "jvm", "tree"), 0.02


def restore_a_copy(world, which, late):
    """Copy the checkpoint of a living query, and put the copy in its place some batches later."""
    copy = world.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copied = world.last("commits")
    _copy(world.checkpoint, copy)
    batches = 1 + int(which * OLDER)
    world.until(lambda: world.last("commits") >= copied + batches, "batches after a copy")
    world.driver.kill(kill_tree)
    shutil.rmtree(world.checkpoint)
    copy.rename(world.checkpoint)
    _start_again(world, "copy", f"a copy {batches} batches old")


def lose_files(world, which, late):
    """Remove the newest files of a checkpoint: of both logs, or the end of the last batch only."""
    world.driver.kill(kill_tree)
    files = 1 + int(which * LOST)
    logs = ("commits",) if late < 0.3 else ("commits", "offsets")
    if logs == ("commits",):
        files = 1  # Spark itself refuses to go on where more are missing
    last = world.last("offsets")
    for log in logs:
        for batch in range(last - files + 1, last + 1):
            for name in (str(batch), f".{batch}.crc"):
                (world.checkpoint / log / name).unlink(missing_ok=True)
    _start_again(world, "lost", f"without the last {files} files of {' and '.join(logs)}")


def stand_still(world, which, late):
    """Stop a driver as a whole, let another one take over its checkpoint, and let the first go on beside it."""
    former = world.driver.process
    pids = [former.pid, *descendants(former.pid)]
    log, batch = "offsets" if late < 0.5 else "commits", world.last("offsets")
    world.freeze(pids, lambda: world.last(log) > batch, then=lambda: world.part_with(former))
    world.driver.killed, world.driver.process = True, None


def _start_again(world, kind, what):
    """Start the query: it goes on, or is refused; then settle what it holds, and begin a new checkpoint."""
    world.driver.killed = True
    before = world.last("commits")
    world.say(f"the checkpoint is {what}: it ends with batch {before}")
    # Until it has come on, the error of the checkpoint is no surprise.
    with world.expecting_a_refusal():
        world.until(lambda: world.last("commits") > before or world.refused(), "a batch, or a refusal")
        if (words := world.refused()) is None:
            world.result.checkpoints[f"{kind} went on"] += 1
            return
        found = REMEDY.search(words)
        assert found is not None, words
        queue, consumer = found.groups()
        if world.driver.running:
            world.driver.kill(kill_tree)
        world.driver.killed = True
        world.say(f"refused; recovered: {_recover(world, world.url_a, queue, consumer)}")
        world.abandon_checkpoint()
        world.result.checkpoints[f"{kind} refused"] += 1
    world.until(lambda: world.last("commits") >= 0, "a batch of the new checkpoint")


def kill_in_first_reserve(world, which, late):
    """Begin a new checkpoint, and kill the driver while it reserves its first batch.

    Return whether it was killed before its first offset was in Spark's log.
    """
    world.driver.kill(kill_tree)
    consumer = _consumer(world)
    for store, queue in world.inputs:
        _recover(world, store.url, queue, consumer)
    world.abandon_checkpoint()
    world.say("a new checkpoint")
    victim = FIRST[int(which * len(FIRST))]
    world.until(lambda: spark_processes(world, "reader"), "a reader", pause=0.02)
    pids = {one: spark_processes(world, one) for one in FIRST}
    # Whatever is reserved is of the new driver: nothing else is left.
    world.until(lambda: world.store_a.reservations("a"), "a first message that is reserved", pause=0.001)
    time.sleep(late * FIRST_DELAY)
    if victim == "tree":
        for one in (*pids["reader"], *pids["jvm"]):
            send(one, signal.SIGSTOP)
        world.driver.kill(kill_tree)
    else:
        world.driver.killed = victim == "jvm"  # its Python ends by itself then
        for one in pids[victim]:
            send(one, signal.SIGKILL)
    hit = world.last("offsets") < 0
    world.say(f"killed {victim} {'before' if hit else 'after'} the first offset")
    world.result.checkpoints[f"killed {'before' if hit else 'after'} the first offset"] += 1
    world.until(lambda: world.last("commits") >= 0, "a batch of the new checkpoint")
    return hit


def _consumer(world):
    """The consumer of the query, by Spark's log of offsets."""
    offset = world.checkpoint / "offsets" / str(world.last("offsets"))
    return json.loads(offset.read_text().splitlines()[-1])["consumer"]


def _recover(world, url, queue, consumer):
    """Do what the error says, as soon as no process counts as running the query."""
    command = [sys.executable, "-m", "spark_queue.cli", "recover", url, queue, consumer]
    for sink in world.sinks:
        command += ["--sink", sink]
    command.append("--yes")
    said = []

    def done():
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        said.append((run.stdout + run.stderr).strip())
        return run.returncode == 0

    world.until(done, f"{' '.join(command)}: {said[-1:]}", pause=0.5)
    return said[-1]


def _copy(checkpoint, copy):
    """Copy a checkpoint that is in use. Commits first: then its last batch may be unfinished, as after a kill."""

    def copied(source, target):
        with suppress(FileNotFoundError):  # a log has dropped its oldest file
            shutil.copy2(source, target)

    how = {"copy_function": copied, "dirs_exist_ok": True}
    shutil.copytree(checkpoint / "commits", copy / "commits", ignore=shutil.ignore_patterns("*.tmp*"), **how)
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns("commits", "*.tmp*"), **how)


#: How a kind of victim is struck.
STRIKES = {
    "copy": restore_a_copy,
    "lost": lose_files,
    "standstill": stand_still,
    "first": kill_in_first_reserve,
}
