"""The jobs before Spark starts: their arguments, and a user's mistakes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"
sys.path.insert(0, str(JOBS))
job = importlib.import_module("_job")

Q = ["--queue", "q", "--url", "sqlite:///q.db"]


def run_job(folder, name, *args):
    """Run a job without Java, so that one that reaches Spark cannot go on."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environ["JAVA_HOME"] = str(folder / "no-java")
    return subprocess.run(
        [sys.executable, JOBS / name, *args], cwd=folder, env=environ, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "flights.csv").write_text("id,carrier\n1,UA\n")
    (tmp_path / "flights.xls").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["fligts.csv", *Q], 2, "no file or folder 'fligts.csv'; did you mean 'flights.csv' or 'flights.xls'?"),
        (["flights.xls", *Q], 2, "'flights.xls': unknown suffix; set --format csv|"),
        (["flights.csv", *Q, "--format", "cvs"], 2, "argument --format: invalid choice: 'cvs'"),
        (["flights.csv", *Q, "--heders", "id"], 2, "unknown argument '--heders'; did you mean '--headers'?"),
        (["flights.csv", "--url", "sqlite:///q.db"], 2, "the following arguments are required: --queue"),
        (["flights.csv", *Q, "--delay", "soon"], 2, "'soon' is not a duration such as 500ms, 30s, 2m, 1h or 7d"),
        (["flights.csv", *Q, "--limit", "0"], 2, "'0' must be a whole number, 1 or more"),
        (["flights.csv", *Q, "--option", "x"], 2, "'x' must be key=value"),
        (["flights.csv", *Q, "--option", "onBadRw=fail"], 2, "unknown option 'onBadRw'; did you mean 'onBadRow'?"),
        (["flights.csv", *Q, "--option", "maxTries=1"], 2, "option 'maxTries' is not for a write that pushes"),
        (["flights.csv", "--queue", "q", "--url", "sqlit:///q.db"], 2, "no store for sqlit://; did you mean"),
        (["flights.csv", "--queue", "", "--url", "sqlite:///q.db"], 2, "option 'queue' is '' but must be non-empty"),
        (["flights.csv", "--queue", "q", "--url", "sqlite:///no/q.db"], 1, "the folder"),
        (["flights.csv", "--queue", "q", "--url", "sqlite:///flights.csv"], 1, "it is some other kind of file"),
        (["flights.csv", *Q], 2, "Spark needs Java 17 or later: install it, or set JAVA_HOME to its folder"),
    ],
)  # fmt: skip
def test_push_reports_a_mistake_before_spark_starts(folder, args, code, message):
    done = run_job(folder, "push.py", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert "push.py: " in done.stderr and message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--to", "parquet"], "--to parquet needs --path"),
        (["--to", "console", "--path", "x"], "--path does not go with --to console"),
        (["--to", "excel"], "argument --to: invalid choice: 'excel'"),
        (["--to", "queue"], "--to queue needs --to-queue"),
        (["--to", "noop", "--to-queue", "r"], "--to-queue needs --to queue"),
        (["--to", "queue", "--to-queue", "r"], "--to queue needs --checkpoint DIR, which records"),
        (["--to", "queue", "--to-queue", "q", "--checkpoint", "c"], "queue 'q' would be drained into itself"),
        (["--to", "queue", "--to-queue", "r", "--checkpoint", "c", "--schema", "a INT"], "leave --schema out"),
        (["--to", "queue", "--to-queue", "r", "--to-url", "s3://x"], "no store for s3://"),
        (["--to", "noop", "--available-now", "--trigger", "5s"], "not allowed with argument"),
        (["--to", "noop", "--history", "--checkpoint", "c"], "--checkpoint does not go with --history"),
        (["--to", "noop", "--history", "--max-records", "5"], "'maxRecordsPerTrigger' is not for a batch read"),
        (["--to", "noop", "--consumer", "a b"], "option 'consumer' is 'a b' but must be 1 to 100 letters"),
        (["--to", "noop", "--option", "reserveTimeout=1"], "option 'reserveTimeout' is '1' but must be a duration"),
    ],
)
def test_drain_reports_a_mistake_before_spark_starts(folder, args, message):
    done = run_job(folder, "drain.py", *Q, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "drain.py: " in done.stderr and message in done.stderr


@pytest.mark.parametrize("name", ["push.py", "drain.py", "executor.py", "heartbeat.py"])
def test_help_shows_examples(folder, name):
    done = run_job(folder, name, "--help")
    assert done.returncode == 0
    assert f"Examples:\n  python jobs/{name} " in done.stdout


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("…\nTraceback …\nspark_queue.errors.SchemaError: no column 'x'\n\n\tat org.apache…", ("no column 'x'", 2)),
        ("job aborted\nspark_queue.errors.MessageError: row 'a': bad", ("row 'a': bad", 1)),
        ("\n[FAILED] it did\n\tat x\nCaused by: a.B: first\nCaused by: a.C$D: last", ("[FAILED] it did: last", 1)),
        ("An error occurred while calling o7.save.\n: org.x.Y: [A] why\n\tat x", ("[A] why", 1)),
        ("", ("RuntimeError", 1)),
    ],
)  # fmt: skip
def test_an_error_that_spark_hands_on_is_shown_in_one_line(text, answer):
    assert job.diagnosis(RuntimeError(text)) == answer


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("executor.py", ["nowhere.yaml", *Q], "nowhere.yaml: no such file or directory"),
        ("executor.py", ["bad.yaml", *Q], "line 2, executor 1: 'function' is missing"),
        ("executor.py", ["lost.yaml", *Q], "lost.yaml:2: nowhere:f: No module named 'nowhere'"),
        (
            "executor.py",
            [*Q, "--avaliable-now"],
            "unknown argument '--avaliable-now'; did you mean '--available-now'?",
        ),
        ("executor.py", [*Q, "--option", "maxTry=1"], "unknown option 'maxTry'; did you mean 'maxTries'"),
        ("heartbeat.py", ["x", *Q, "--conf", "beat.yaml"], "there is no heartbeat 'x'; there are OneMinute"),
        ("heartbeat.py", ["x", *Q], "the following arguments are required: --conf"),
    ],
)
def test_jobs_of_events_report_a_mistake_before_spark_starts(folder, name, args, message):
    (folder / "bad.yaml").write_text("executors:\n  - {source: s, type: t}\n")
    (folder / "lost.yaml").write_text("executors:\n  - {source: s, type: t, function: nowhere:f}\n")
    (folder / "beat.yaml").write_text("heartbeats:\n  - {id: OneMinute, type: t}\n")
    done = run_job(folder, name, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{name}: " in done.stderr and message in done.stderr


def test_a_heartbeat_ticks_without_spark(folder):
    (folder / "beat.yaml").write_text("heartbeats:\n  - {id: OneMinute, type: t}\n")
    done = run_job(folder, "heartbeat.py", "OneMinute", *Q, "--conf", "beat.yaml", "--json")
    assert done.returncode == 0 and '"events": 1' in done.stdout
    assert "1 event of heartbeat OneMinute created in q" in done.stderr
