"""Sessions: the interpreter of workers, and the error if they cannot import the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import spark_queue
from spark_queue import UsageError
from spark_queue.spark import sessions
from tests.pages import blocks

ROOT = Path(__file__).parents[2]

#: Hides the package from an interpreter, if a variable says so, as if it was not installed.
HIDES = """
import os, sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "spark_queue" and os.environ.get("HIDE_SPARK_QUEUE"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hides())
"""


def run_program(folder, program, **env):
    """Run a program as cron does: this interpreter, its own folder, no activated environment."""
    (folder / "program.py").write_text(program)
    kept = {
        name: os.environ[name] for name in ("HOME", "JAVA_HOME", "SPARK_SUBMIT_OPTS", "TMPDIR") if name in os.environ
    }
    path = os.pathsep.join(
        one for one in os.environ["PATH"].split(os.pathsep) if Path(one) != Path(sys.executable).parent
    )
    given = kept | {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"} | env
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def quickstart():
    section = (ROOT / "README.md").read_text().partition("## Quickstart")[2]
    return next(text for kind, text in blocks(section) if kind == "python")


def test_the_quickstart_runs_as_written_in_an_environment_that_is_not_activated(tmp_path):
    done = run_program(tmp_path, quickstart())
    assert done.returncode == 0, done.stderr[-3000:]
    assert "book" in done.stdout and "lamp" in done.stdout, done.stdout
    assert (tmp_path / "shop.db").exists()


def test_spark_connect_without_its_packages_names_the_extra(tmp_path):
    program = "import sys\nsys.modules['grpc'] = None\nimport spark_queue\nspark_queue.session(**{'spark.remote': 'sc://h'})"
    done = run_program(tmp_path, program)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("spark_queue.errors.UsageError: grpcio"), done.stderr
    assert last.endswith("Install it with: pip install 'spark-queue[connect]'") and "[PACKAGE" not in last


def test_the_quickstart_is_short():
    assert len(quickstart().strip().splitlines()) <= 15


def test_a_session_that_there_is_is_taken_and_gets_the_conf(spark):
    assert spark_queue.spark.session(**{"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": True}) is spark
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


@pytest.mark.parametrize(
    ("conf", "env", "defaults", "locally"),
    [
        ({}, {}, "", True),
        ({"spark.master": "local[4]"}, {}, "spark.master yarn", True),
        ({}, {}, "spark.master   yarn\n", False),
        ({}, {}, "# spark.master yarn\nspark.app.name x\n", True),
        ({"spark.master": "local-cluster[1,1,1024]"}, {}, "", False),
        ({"spark.master": "spark://host:7077"}, {}, "", False),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--master k8s://host pyspark-shell"}, "", False),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--master=local[2] pyspark-shell"}, "spark.master yarn", True),
        ({}, {"PYSPARK_GATEWAY_PORT": "25333"}, "", False),
        ({"spark.remote": "sc://host"}, {}, "", False),
        ({}, {"SPARK_REMOTE": "sc://host"}, "", False),
    ],
)
def test_only_where_spark_starts_on_this_machine_its_workers_get_this_interpreter(
    conf, env, defaults, locally, tmp_path, monkeypatch
):
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert sessions._is_local(conf) is locally


@pytest.fixture
def hidden(tmp_path):
    """An interpreter that has Spark, but not this package."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDES)
    interpreter = tmp_path / "python"
    interpreter.write_text(
        f'#!/bin/sh\nHIDE_SPARK_QUEUE=1 PYTHONPATH={tmp_path}/site:$PYTHONPATH exec {sys.executable} "$@"\n'
    )
    interpreter.chmod(0o755)
    return interpreter


def test_an_interpreter_that_lacks_the_package_is_named_with_the_remedy(hidden, tmp_path):
    def check(python, master="local[2]"):
        sessions._check_interpreter(SimpleNamespace(_sc=SimpleNamespace(master=master, pythonExec=str(python))))

    check(sys.executable)
    check(hidden, master="spark://host:7077")  # whose machines this one does not know
    with pytest.raises(
        UsageError, match=rf"run '{hidden}': .*No module named 'spark_queue.*session\(\), or set PYSPARK_PYTHON"
    ):
        check(hidden)
    with pytest.raises(UsageError, match="run '/nowhere/python': it does not exist"):
        check("/nowhere/python")


READ = """
from pyspark.sql import SparkSession
import spark_queue
with spark_queue.Queue("sqlite:///shop.db", "orders") as queue:
    queue.push(1)
spark = SparkSession.builder.master({master!r}).config("spark.ui.enabled", "false"){more}.getOrCreate()
try:
    spark_queue.register(spark)
    rows = spark.read.format("queue").options(url="sqlite:///shop.db", queue="orders").load().collect()
    print("rows:", len(rows))
except Exception as error:
    print(str(error))
"""


@pytest.mark.full
@pytest.mark.parametrize("where", ["local", "cluster", "cluster, without register"])
def test_a_session_made_without_ours_says_in_one_sentence_what_its_workers_lack(where, hidden, tmp_path):
    """On a cluster the driver has the package, and the machines of the executors do not."""
    site = f"{tmp_path}/site:{ROOT}"
    if where == "local":
        done = run_program(
            tmp_path, READ.format(master="local[2]", more=""), PYSPARK_PYTHON=str(hidden), PYTHONPATH=str(ROOT)
        )
    else:
        more = '.config("spark.executorEnv.HIDE_SPARK_QUEUE", "1")'
        program = READ.format(master="local-cluster[1,1,1024]", more=more)
        if "without" in where:
            program = program.replace("    spark_queue.register(spark)\n", "")
        done = run_program(tmp_path, program, PYSPARK_PYTHON=sys.executable, PYTHONPATH=site)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [one for one in done.stdout.splitlines() if "Spark's Python workers run" in one]
    assert sys.executable in line or str(hidden) in line
    assert "spark_queue.session()" in line and "PYSPARK_PYTHON" in line
    assert "\tat org." not in done.stdout and len(done.stdout.splitlines()) <= 15, done.stdout


@pytest.mark.parametrize(
    ("master", "known", "here", "expected"),
    [
        ("local[3]", 3, 8, 3),
        ("spark://host:7077", 32, 8, 32),
        ("yarn", 2, 8, 8),  # its executors are still starting
    ],
)
def test_cores_of_the_cluster(master, known, here, expected, monkeypatch):
    monkeypatch.setattr(sessions, "cores", lambda: here)
    context = SimpleNamespace(master=master, defaultParallelism=known)
    assert sessions._cluster_cores(SimpleNamespace(_sc=context)) == expected
    assert sessions._cluster_cores(SimpleNamespace()) is None, "Spark Connect"


def test_a_batch_has_a_partition_for_each_core_of_the_cluster(tmp_path):
    from pyspark import cloudpickle

    from spark_queue import Queue
    from spark_queue.spark.data_source import QueueDataSource
    from spark_queue.spark.pickling import portable_source
    from spark_queue.spark.read import limits

    url = f"sqlite:///{tmp_path}/q.db"
    with Queue(url, "q") as queue:
        queue.push_many(range(20_000))
    before = limits.cluster_cores()
    try:
        made = portable_source(QueueDataSource, cores=5)({"url": url, "queue": "q"})
        stream = cloudpickle.loads(cloudpickle.dumps(made)).streamReader(made.schema())
        start = stream.initialOffset()
        end = stream.latestOffset(start, None)
        assert [len(end["rows"]), sum(end["rows"])] == [5, 20_000]
        stream.stop()
    finally:
        limits.set_cluster_cores(None)
    assert limits.cluster_cores() == before
