"""Docs run as they are written: each page is one program, in its own folder. README: see spark/test_session.py."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from pymongo import MongoClient

from spark_queue import Queue
from tests.spark_session import SPARK

ROOT = Path(__file__).parents[2]
#: Pages with programs, but for one that needs no Spark: see client/test_docs.py.
PAGES = [
    path
    for path in sorted((ROOT / "docs").glob("*.md"))
    if "```python" in path.read_text() and path.name != "client.md"
]

START = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
"""


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


#: Where pages that need a server say it is.
SERVER = "mongodb://localhost/air?"


@pytest.fixture
def served(request):
    """Text of a page, with the server of the tests, and a database of its own there."""
    with ExitStack() as stack:

        def at_home(text):
            if SERVER not in text:
                return text
            url = urlsplit(request.getfixturevalue("mongodb_url"))
            name = f"t{uuid.uuid4().hex[:16]}"
            client = stack.enter_context(MongoClient(url.geturl()))
            stack.callback(client.drop_database, name)
            mine = url._replace(path=f"/{name}").geturl()
            return text.replace(SERVER, f"{mine}{'&' if url.query else '?'}")

        yield at_home


@pytest.mark.parametrize(
    "page",
    [pytest.param(one, marks=() if one.name == "tutorial.md" else pytest.mark.full, id=one.name) for one in PAGES],
)
def test_the_snippets_of_a_page_run(page, tmp_path, served):
    script = tmp_path / "page.py"
    script.write_text(START + "\n".join(programs(served(page.read_text()))))
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if page.name == "tutorial.md":
        assert "UA" in done.stdout and (tmp_path / "out" / "departures").is_dir()
        with Queue(f"sqlite:///{tmp_path}/queues.db", "departures") as queue:
            held = 0 if SPARK >= (4, 2) else 2  # by the first query, until it starts again
            found = queue.sizes()
        assert (found.scheduled, found.total) == (1, 1 + held), "the late flight is tried again later"
    if page.name == "history.md":
        printed = [line.split(" ", 1) for line in done.stdout.splitlines() if line[:2] in ("5 ", "0 ", "1 ")]
        assert [number for number, _ in printed] == ["5", "5", "0", "1"], done.stdout
        assert "no such flight: UA 5" in done.stdout


@pytest.mark.full
def test_the_jobs_of_the_docs_run_as_written(tmp_path):
    """All but that of the graph, which test_demo.py runs."""
    page = (ROOT / "docs" / "jobs.md").read_text()
    commands = re.findall(r"^\$ python (jobs/(?:push|drain)\.py.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    (tmp_path / "flights.csv").write_text("carrier,flight,dep_delay\nUA,1545,2\nAA,1141,33\n")
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    for command in commands:
        done = subprocess.run(
            [sys.executable, *shlex.split(f"{ROOT}/{command}")],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    assert pq.read_table(tmp_path / "out").num_rows == 2
