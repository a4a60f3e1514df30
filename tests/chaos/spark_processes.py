"""The processes of Spark in a world, by what they do."""

from __future__ import annotations

from tests.chaos.processes import command_of, descendants

#: How the command lines of Spark's processes differ.
JVM = "org.apache.spark.deploy.SparkSubmit"
SPARK = {
    "jvm": JVM,
    "tree": JVM,
    "reader": "python_streaming_source_runner",
    "sink": "python_streaming_sink_runner",
    "worker": "pyspark.daemon pyspark.worker",
    "executor": "CoarseGrainedExecutorBackend",
}

FORKED = ("sink", "worker")


def spark_processes(world, victim):
    """The processes of Spark that do the work: not the daemons, but their forks."""
    driver, below = world.driver, {}
    roots = [driver.process.pid] if driver.running and not driver.killed else []
    for root in [*roots, *(node.process.pid for node in world.nodes)]:
        below |= {root: command_of(root)} | descendants(root)
    world.strays |= {pid: command for pid, command in below.items() if pid not in roots}
    found = sorted(pid for pid, command in below.items() if SPARK[victim] in command)
    return sorted({child for pid in found for child in descendants(pid)}) if victim in FORKED else found
