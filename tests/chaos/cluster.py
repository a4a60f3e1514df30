"""A standalone cluster of the pip package: a master, and two workers with an executor each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.processes import ROOT, kill, kill_tree
from tests.chaos.servers import free_port
from tests.services import HOST

SPARK_HOME = Path(pyspark.__file__).parent
BIN = SPARK_HOME / "bin"

#: What all its processes find in their environment: Python and the tree are those of the tests.
ENV = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": HOST,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
}

WORKERS = 2

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"

#: Executors that are killed again and again do not end the application.
CONF = {
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.cores.max": str(WORKERS),
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Daemon:
    """A JVM of the cluster that can be killed and started again."""

    def __init__(self, name: str, folder: Path, *command: str):
        self._log, self._command = folder / f"{name}.out", [str(BIN / "spark-class"), *command]
        self.start()

    def start(self):
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=os.environ | ENV,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self):
        """Kill the JVM alone: what it has started ends by itself."""
        kill(self.process)

    def said(self):
        return self._log.read_text(errors="replace")


class Cluster:
    """See the head of this module. It has its own ports on 127.0.0.1, and its files in a folder."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.url = f"spark://{HOST}:{(port := free_port())}"
        place = ["--host", HOST, "--webui-port", "0"]
        self._master = Daemon("master", folder, MASTER, *place, "--port", str(port))
        share = ["--cores", "1", "--memory", "1g"]
        self.nodes = []
        try:
            # Else a worker that does not find its master waits for ten seconds.
            wait_until(lambda: "I have been elected leader" in self._master.said(), 120)
            for number in range(WORKERS):
                work = ["--work-dir", str(folder / f"work{number}")]
                self.nodes.append(Daemon(f"worker{number}", folder, WORKER, *place, *share, *work, self.url))
        except BaseException:  # nothing may return into the tests
            self.close()
            raise

    @property
    def launcher(self):
        """The words that run a program of Python as a driver of this cluster, in client mode."""
        conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
        return [str(BIN / "spark-submit"), "--master", self.url, "--driver-memory", "700m", *conf]

    def close(self):
        for one in (*self.nodes, self._master):
            kill_tree(one.process)
